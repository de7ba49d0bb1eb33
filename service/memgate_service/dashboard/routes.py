"""The dashboard, assembled: what its pages share, and what runs while the service does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import anyio.to_thread
from fastapi import FastAPI

from memgate_service.dashboard.accuracy_page import accuracy_page
from memgate_service.dashboard.assets import assets
from memgate_service.dashboard.cache_counter import CacheCounter
from memgate_service.dashboard.glossary_page import glossary_page
from memgate_service.dashboard.job_pages import job_pages
from memgate_service.dashboard.live import Hub
from memgate_service.dashboard.overview import OverviewReader
from memgate_service.dashboard.overview_page import overview_page
from memgate_service.dashboard.sign_in import sign_in
from memgate_service.dashboard.try_it import try_it
from memgate_service.dashboard.viewers import Viewers, add_sign_in
from memgate_service.dashboard.what_if import what_if
from memgate_service.http.dependencies import Dependencies
from memgate_worker.queue.client import QueueError

ROUTERS = (overview_page, sign_in, assets, job_pages, what_if, try_it, accuracy_page, glossary_page)


class Dashboard:
    """What pages need besides what the routes share."""

    def __init__(self, deps: Dependencies) -> None:
        self.viewers = Viewers(deps.settings, deps.queue, deps.gatekeeper)
        self.overview = OverviewReader(deps.queue, read_waiting=deps.waiters.callers)
        self.hub = Hub(
            lambda: self.overview.read().sections(),
            deps.queue.questions.states,
            deps.settings.max_viewers,
        )
        self._cache_counter = CacheCounter(deps.metrics, deps.queue)

    def add_to(self, app: FastAPI) -> None:
        """Serve the pages."""
        app.state.viewers = self.viewers
        app.state.overview = self.overview
        app.state.hub = self.hub
        for router in ROUTERS:
            app.include_router(router)
        add_sign_in(app)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keep pages live while the service runs."""
        tasks = [asyncio.create_task(task) for task in (self.hub.run(), self._cache_counter.run())]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            with suppress(QueueError):
                await anyio.to_thread.run_sync(self._cache_counter.write)
