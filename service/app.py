"""The HTTP service, assembled. START READING HERE for a request's way through memgate.

Today it answers probes; estimates come with the engines.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI

from service.routes.probes import probes
from service.settings import ServiceSettings
from worker.client import QueueClient


def create_app(settings: ServiceSettings) -> FastAPI:
    """Assemble the service from its settings; nothing is read from the environment here."""
    queue = QueueClient(str(settings.redis_url))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        queue.close()

    app = FastAPI(
        title="memgate",
        version=version("memgate"),
        description="Will this training job fit on that GPU?",
        lifespan=lifespan,
    )
    app.state.queue = queue
    app.include_router(probes)
    return app
