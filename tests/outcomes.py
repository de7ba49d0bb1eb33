"""A server that takes reports of outcomes, for the tests of the callback."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Reports:
    """What a server was told."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.told: list[dict[str, Any]] = []
        self.keys: list[str | None] = []


@contextmanager
def take_reports(status: int = 201, delay_seconds: float = 0.0) -> Iterator[Reports]:
    """Listen on this machine; answer with a status, after a while."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            reports.keys.append(self.headers["Authorization"])
            reports.told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            time.sleep(delay_seconds)
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b'{"detail": "there is no such job"}')

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.block_on_close = False
    reports = Reports(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield reports
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
