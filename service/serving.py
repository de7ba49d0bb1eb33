"""An app -> a process that listens: how uvicorn is run, in one place."""

from __future__ import annotations

from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from service.protocol import bounded_protocol
from service.settings import ServiceSettings

#: how long a service that is told to stop waits for its open requests
GRACE_SECONDS = 30


def serve(
    app: ASGIApp, settings: ServiceSettings, on_stop: Callable[[], None] = lambda: None
) -> None:
    """Answer requests until told to stop; that calls ``on_stop``, while requests are still open."""
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http=bounded_protocol(settings.body_timeout_seconds),
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        ssl_certfile=settings.tls_certificate,
        ssl_keyfile=settings.tls_key,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    _Server(config, on_stop).run()


class _Server(uvicorn.Server):
    """Tells when it is told to stop: the app's own end comes only after its last request."""

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_stop = on_stop

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Hear a signal."""
        self._on_stop()
        super().handle_exit(sig, frame)
