"""The HTTP service, assembled. START READING HERE for a request's way through memgate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import anyio.to_thread
from anyio import CapacityLimiter
from fastapi import FastAPI

from memgate.version import __version__
from memgate_service.admission.kubernetes.cluster import Cluster
from memgate_service.admission.kubernetes.config_maps import ConfigMaps
from memgate_service.admission.kubernetes.policy_resources import (
    REFRESH_SECONDS,
    PolicyResources,
    open_policies,
)
from memgate_service.dashboard.error_pages import add_error_pages
from memgate_service.dashboard.routes import Dashboard
from memgate_service.http.access import Gatekeeper
from memgate_service.http.asked import Asked
from memgate_service.http.decisions import Decisions
from memgate_service.http.dependencies import Dependencies
from memgate_service.http.errors import add_error_handlers
from memgate_service.http.events import EventSender
from memgate_service.http.metrics import Metrics
from memgate_service.http.middleware import Envelope
from memgate_service.http.openapi import describe
from memgate_service.http.response_cache import CachedResponses, ResponseCache
from memgate_service.http.routes.audit import audit
from memgate_service.http.routes.catalogue import catalogue
from memgate_service.http.routes.docs import docs
from memgate_service.http.routes.error_codes import error_codes
from memgate_service.http.routes.estimates import estimates
from memgate_service.http.routes.jobs import jobs
from memgate_service.http.routes.outcomes import outcomes
from memgate_service.http.routes.probes import probes
from memgate_service.http.routes.webhooks import webhooks
from memgate_service.http.turns import CallerTurns
from memgate_service.http.waiting import Waiters
from memgate_service.settings import ServiceSettings
from memgate_worker.logs import write_line
from memgate_worker.queue.client import Listener, QueueClient

#: answers kept in this process; one is about a kilobyte
_NUM_ANSWERS = 20_000

#: a new question takes milliseconds of computing in a thread: with more of them at once, known
#: answers would wait for Python's lock behind them all
_MAX_SUBMITTING = 4

#: probes come from a few programs; more of them wait, and are told that the queue does not answer
_MAX_PROBING = 4


def create_app(settings: ServiceSettings) -> FastAPI:
    """Assemble the service from its settings; nothing is read from the environment here."""
    queue = QueueClient(settings)
    waiters = Waiters(settings.max_waiting, settings.max_waiting_each)
    connect = partial(Cluster.connect, settings.kubeconfig)
    metrics = Metrics(queue, waiters)
    deps = Dependencies(
        settings=settings,
        queue=queue,
        waiters=waiters,
        gatekeeper=Gatekeeper(settings, queue.keys),
        metrics=metrics,
        asked=Asked(queue, metrics.questions_dropped),
        answers=ResponseCache(_NUM_ANSWERS),
        submitting=CapacityLimiter(_MAX_SUBMITTING),
        probing=CapacityLimiter(_MAX_PROBING),
        config_maps=ConfigMaps(connect),
        policy=open_policies(
            settings, connect, lambda problem: write_line("policy", {"error": problem})
        ),
        decisions=Decisions(queue),
        events=EventSender(connect, is_on=settings.admission_events),
    )
    app = FastAPI(
        title="memgate",
        version=__version__,
        description="Will this training job fit on that GPU? Errors are problem documents"
        " (RFC 9457) with a stable `code`.",
        lifespan=_lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.state.dependencies = deps
    everything = (
        *(estimates, jobs, catalogue, outcomes, audit),
        *(webhooks, probes, docs, error_codes),
    )
    for router in everything if settings.serve == "all" else (webhooks, probes):
        app.include_router(router)
    dashboard = app.state.dashboard = Dashboard(deps)
    if settings.serve == "all":
        dashboard.add_to(app)
    add_error_handlers(app)
    if settings.serve == "all":
        add_error_pages(app)
    describe(app, settings)
    # The one that is added last comes first.
    app.add_middleware(
        CachedResponses,
        answers=deps.answers,
        asked=deps.asked,
        gatekeeper=deps.gatekeeper,
        metrics=deps.metrics,
    )
    app.add_middleware(CallerTurns)
    app.add_middleware(Envelope, settings=settings, metrics=deps.metrics)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    deps: Dependencies = app.state.dependencies
    deps.waiters.use_loop(asyncio.get_running_loop())
    listener = Listener(deps.settings, deps.waiters.notify)
    watchdog, referee = deps.queue.make_watchdog(), deps.queue.make_referee()
    listener.start()
    watchdog.start()
    referee.start()
    reading = asyncio.create_task(_keep_reading(deps.policy))
    looking = asyncio.create_task(deps.waiters.keep_looking(deps.queue))
    current = asyncio.create_task(deps.answers.keep_current(deps.queue))
    telling = asyncio.create_task(deps.events.keep_sending())
    storing = asyncio.create_task(deps.decisions.keep_storing())
    keeping = asyncio.create_task(deps.asked.keep_storing())
    async with app.state.dashboard.running():
        yield
    reading.cancel()
    looking.cancel()
    current.cancel()
    storing.cancel()
    telling.cancel()
    keeping.cancel()
    await deps.asked.stop()
    await deps.decisions.stop()
    await deps.events.flush()
    referee.stop()
    watchdog.stop()
    listener.stop()
    deps.queue.close()


async def _keep_reading(policies: PolicyResources) -> None:
    """Keep the policies up to date that are objects of the cluster."""
    while policies.is_on:
        await anyio.to_thread.run_sync(policies.refresh, abandon_on_cancel=True)
        await asyncio.sleep(REFRESH_SECONDS)
