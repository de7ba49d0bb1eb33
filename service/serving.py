"""An app -> a process that listens: how uvicorn is run, in one place."""

from __future__ import annotations

import uvicorn
from starlette.types import ASGIApp

from service.settings import ServiceSettings

#: how long a service that is told to stop waits for its open requests
GRACE_SECONDS = 30


def serve(app: ASGIApp, settings: ServiceSettings) -> None:
    """Answer requests until told to stop."""
    uvicorn.run(
        app,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http="httptools",
        log_config=None,
        access_log=False,
        server_header=False,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
