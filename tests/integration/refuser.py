"""Webhooks of others for tests: one says no to everything, one changes everything."""

from __future__ import annotations

import base64
import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from memgate_service.admission.kubernetes.issuing import Issued


class _Refuser(BaseHTTPRequestHandler):
    """Refuses everything that it is asked about."""

    def do_POST(self) -> None:
        """Answer an AdmissionReview."""
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        response = self.answer(review["request"]["uid"])
        body = json.dumps(review | {"response": response}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def answer(self, uid: str) -> dict[str, Any]:
        """Return the response."""
        return {"uid": uid, "allowed": False, "status": {"message": f"{self.path} says no"}}

    def log_message(self, *_: object) -> None:
        """Be silent."""


class _Changer(_Refuser):
    """Lets everything in, with an annotation more."""

    def answer(self, uid: str) -> dict[str, Any]:
        """Return the response: a patch that works whether there are annotations or not."""
        step = {"op": "add", "path": "/metadata/annotations", "value": {"changed": uid}}
        patch = base64.b64encode(json.dumps([step]).encode()).decode()
        return {"uid": uid, "allowed": True, "patchType": "JSONPatch", "patch": patch}


@contextmanager
def refuser(issued: Issued, directory: Path) -> Iterator[str]:
    """Serve the one that refuses on loopback, with a certificate; return where."""
    with _serving(_Refuser, issued, directory) as url:
        yield url


@contextmanager
def changer(issued: Issued, directory: Path) -> Iterator[str]:
    """Serve the one that changes; return where."""
    with _serving(_Changer, issued, directory) as url:
        yield url


@contextmanager
def _serving(handler: type[_Refuser], issued: Issued, directory: Path) -> Iterator[str]:
    certificate, key = directory / "refuser.crt", directory / "refuser.key"
    certificate.write_bytes(issued.certificate)
    key.write_bytes(issued.key)
    server = HTTPServer(("127.0.0.1", 0), handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"https://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
