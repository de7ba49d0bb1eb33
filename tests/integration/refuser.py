"""A webhook that says no to everything: for tests of who is asked, and who is trusted."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

from memgate_service.admission.kubernetes.issuing import Issued


class _Refuser(BaseHTTPRequestHandler):
    """Refuses everything that it is asked about."""

    def do_POST(self) -> None:
        """Answer an AdmissionReview."""
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        uid = review["request"]["uid"]
        message = f"{self.path} says no"
        response = {"uid": uid, "allowed": False, "status": {"message": message}}
        body = json.dumps(review | {"response": response}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Be silent."""


@contextmanager
def refuser(issued: Issued, directory: Path) -> Iterator[str]:
    """Serve it on loopback with a certificate; return where."""
    certificate, key = directory / "refuser.crt", directory / "refuser.key"
    certificate.write_bytes(issued.certificate)
    key.write_bytes(issued.key)
    server = HTTPServer(("127.0.0.1", 0), _Refuser)
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
