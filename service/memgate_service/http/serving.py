"""An app -> a process that listens: how uvicorn is run, in one place."""

from __future__ import annotations

import socket
import ssl
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

from memgate_service.http.protocol import bounded_protocol
from memgate_service.settings import ServiceSettings
from memgate_worker.logs import write_line

#: how long a stopping service waits for its open requests
GRACE_SECONDS = 30


#: a renewed certificate is noticed within two seconds
_TICKS_BETWEEN_LOOKS = 20


def serve(
    app: ASGIApp, settings: ServiceSettings, on_stop: Callable[[], None] = lambda: None
) -> None:
    """Answer requests until told to stop; ``on_stop`` is then called, with requests still open."""
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
    inherited = None if settings.listen_fd is None else [_open_socket(settings.listen_fd)]
    _Server(config, on_stop).run(sockets=inherited)


def _open_socket(number: int) -> socket.socket:
    try:
        return socket.socket(fileno=number)
    except OSError as error:
        sys.exit(f"MEMGATE_LISTEN_FD is {number}: that is not an open socket ({error.strerror})")


class _Server(uvicorn.Server):
    """Reports when it is told to stop: the app's own shutdown comes only after its last request.

    New connections use a renewed certificate, without a restart.
    """

    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_stop = on_stop
        self._certificate = _stamp(config)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening, and log where: the port may have been chosen just now."""
        await super().startup(sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            write_line("listening", {"url": base_url(host, port, tls=self.config.is_ssl)})

    async def on_tick(self, counter: int) -> bool:
        """Do periodic work; uvicorn calls this ten times a second."""
        if self.config.ssl is not None and counter % _TICKS_BETWEEN_LOOKS == 0:
            self._renew(self.config.ssl)
        return await super().on_tick(counter)

    def _renew(self, context: ssl.SSLContext) -> None:
        found = _stamp(self.config)
        if found == self._certificate:
            return
        pair = str(self.config.ssl_certfile), self.config.ssl_keyfile
        try:
            # tried separately first: with a key that does not match, a context ends up with none
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(*pair)
            context.load_cert_chain(*pair)
        except (OSError, ssl.SSLError) as error:  # only half of it is written: look again
            write_line("certificate", {"error": str(error)})
            return
        self._certificate = found
        write_line("certificate", {"renewed": True})

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        self._on_stop()
        super().handle_exit(sig, frame)


def base_url(host: str, port: int, *, tls: bool) -> str:
    """Return the URL of a service that listens there."""
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def _stamp(config: uvicorn.Config) -> tuple[int, ...]:
    """Return a value that changes with the certificate's files; empty if one is missing."""
    names = [name for name in (config.ssl_certfile, config.ssl_keyfile) if name is not None]
    try:
        return tuple(Path(name).stat().st_mtime_ns for name in names)
    except OSError:
        return ()
