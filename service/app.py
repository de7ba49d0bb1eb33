"""The HTTP service, assembled. START READING HERE for a request's way through memgate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from anyio import CapacityLimiter
from cachetools import LRUCache
from fastapi import FastAPI

from service.access import Gatekeeper
from service.admission.config_maps import ConfigMaps
from service.dashboard.error_pages import add_error_pages
from service.dashboard.routes import Dashboard
from service.errors import add_error_handlers
from service.metrics import Metrics
from service.middleware import Envelope
from service.openapi import describe
from service.parts import Parts
from service.remembered import Remembered
from service.routes.catalogue import catalogue
from service.routes.docs import docs
from service.routes.estimates import estimates
from service.routes.jobs import jobs
from service.routes.outcomes import outcomes
from service.routes.probes import probes
from service.routes.webhooks import webhooks
from service.settings import ServiceSettings
from service.waiting import Waiters
from worker.client import Listener, QueueClient
from worker.keys import KeyRing
from worker.watchdog import Watchdog

#: answers kept in this process; one is about a kilobyte
_NUM_ANSWERS = 20_000

#: a new question takes milliseconds of computing in a thread: with more of them at a time, answers
#: that are known would wait for Python's lock behind them all
_MAX_SUBMITTING = 4


def create_app(settings: ServiceSettings) -> FastAPI:
    """Assemble the service from its settings; nothing is read from the environment here."""
    queue = QueueClient(settings)
    waiters = Waiters(settings.max_waiting)
    parts = Parts(
        settings=settings,
        queue=queue,
        waiters=waiters,
        gatekeeper=Gatekeeper(settings, KeyRing(queue.store)),
        metrics=Metrics(queue),
        answers=LRUCache(_NUM_ANSWERS),
        submitting=CapacityLimiter(_MAX_SUBMITTING),
        config_maps=ConfigMaps(settings.kubeconfig),
    )
    app = FastAPI(
        title="memgate",
        version=version("memgate"),
        description="Will this training job fit on that GPU? Errors are problem documents"
        " (RFC 9457) with a stable `code`.",
        lifespan=_lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.parts = parts
    everything = (estimates, jobs, catalogue, outcomes, webhooks, probes, docs)
    for router in everything if settings.serve == "all" else (webhooks, probes):
        app.include_router(router)
    dashboard = app.state.dashboard = Dashboard(parts)
    if settings.serve == "all":
        dashboard.add_to(app)
    add_error_handlers(app)
    if settings.serve == "all":
        add_error_pages(app)
    describe(app, settings)
    # The one that is added last comes first.
    app.add_middleware(
        Remembered, answers=parts.answers, gatekeeper=parts.gatekeeper, metrics=parts.metrics
    )
    app.add_middleware(Envelope, settings=settings, metrics=parts.metrics)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    parts: Parts = app.state.parts
    parts.waiters.use_loop(asyncio.get_running_loop())
    listener = Listener(parts.settings, parts.waiters.tell_over)
    watchdog = Watchdog(parts.queue.store, parts.settings)
    listener.start()
    watchdog.start()
    looking = asyncio.create_task(parts.waiters.keep_looking(parts.queue))
    async with app.state.dashboard.running():
        yield
    looking.cancel()
    watchdog.stop()
    listener.stop()
    parts.queue.close()
