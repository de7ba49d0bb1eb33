"""Around every request: an id, limits on its body, a log line, metrics, and conservative headers.

Plain ASGI: every answer from the cache passes through it, so it must cost next to nothing.
"""

from __future__ import annotations

import re
import time
from ipaddress import ip_address
from secrets import token_hex
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from memgate.units import MIB
from memgate_service.admission.kubernetes.settings import split
from memgate_service.http.errors import problem, unknown_problem
from memgate_service.http.metrics import Metrics
from memgate_service.http.rate_limits import LimitedBody, declared_length, drain, too_large
from memgate_service.settings import ServiceSettings
from memgate_worker.logs import write_line

#: for every response that does not set its own
_HEADERS = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
)
#: for pages that do not set their own: nothing external, nothing inline, no framing
PAGE_POLICY = (
    b"default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self';"
    b" frame-ancestors 'none'"
)
#: requested by machines all day long: counted, not logged
_QUIET = frozenset({"/healthz", "/readyz", "/metrics"})

#: in logs and metrics: the client left before it had sent everything (nginx's code)
_GONE = 499

#: an API server accepts 3 MiB, and sends both the old and the new object of a change. A review that
#: is refused counts as no answer: with the policy Fail, nobody could change a large object any more
_MAX_REVIEW_BYTES = 8 * MIB
_REVIEWS = "/webhooks/"

#: what a page of another site must not have a browser send: forms need no leave of ours
_CHANGING = frozenset({"POST", "PUT", "PATCH", "DELETE"})

#: the dashboard's forms say more about it (``refuse_other_origins``)
_PAGES = "/ui/"

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})

_REQUEST_ID = re.compile(rb"[0-9A-Za-z][0-9A-Za-z._-]{0,63}")


class Envelope:
    """The outermost layer."""

    def __init__(self, app: ASGIApp, settings: ServiceSettings, metrics: Metrics) -> None:
        self._app = app
        self._settings = settings
        self._metrics = metrics
        #: nobody sends a key, so only known host names are allowed
        self._is_open = settings.serve == "all" and not settings.needs_keys
        self._hosts = frozenset(split(settings.allowed_hosts.lower()))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        request_id = _clean(headers.get(b"x-request-id")) or token_hex(8)
        scope.setdefault("state", {})["request_id"] = request_id
        method = scope["method"]
        start = time.perf_counter()
        answer = _Answer(send, request_id, has_body=method != "HEAD")
        try:
            host = _host_name(headers)
            if self._is_open and _is_public(host) and host not in self._hosts:
                await _wrong_host(host)(scope, receive, answer.send)
                return
            if method in _CHANGING and _is_from_another_site(headers, scope["path"]):
                await _other_origin()(scope, receive, answer.send)
                return
            if method == "OPTIONS":
                await _options(scope)(scope, receive, answer.send)
                return
            if method == "HEAD":  # like GET, without the body
                scope["method"] = "GET"
            await self._limited(scope, headers, receive, answer.send)
        except ClientDisconnect:
            answer.status = _GONE  # there is nobody left to answer
        except Exception as error:
            if answer.has_begun:
                raise  # the server breaks the connection: half a response must not look complete
            await unknown_problem(error)(scope, receive, answer.send)
        finally:
            self._note(scope, method, request_id, answer.status, time.perf_counter() - start)

    async def _limited(
        self, scope: Scope, headers: dict[bytes, bytes], receive: Receive, send: Send
    ) -> None:
        is_upload = headers.get(b"content-type", b"").lower().startswith(b"multipart/")
        settings = self._settings
        most = settings.max_upload_bytes if is_upload else settings.max_body_bytes
        if scope["path"].startswith(_REVIEWS):
            most = max(most, _MAX_REVIEW_BYTES)
        if declared_length(headers) > most:
            if b"expect" not in headers:  # otherwise it waits for our go-ahead, and sends nothing
                await drain(receive, most)
            error = too_large(most)
            refusal = problem(error.status, error.code, error.detail, headers=error.headers)
            await refusal(scope, receive, send)
            return
        body = LimitedBody(receive, most, settings.body_timeout_seconds)
        await self._app(scope, body.receive, send)

    def _note(
        self, scope: Scope, method: str, request_id: str, status: int, seconds: float
    ) -> None:
        route = getattr(scope.get("route"), "path", "unknown")
        known = method if method in _METHODS else "OTHER"
        self._metrics.note_request(known, route, status, seconds)
        if route in _QUIET:
            return
        state: dict[str, Any] = scope["state"]
        line = {
            "request": request_id,
            "method": method,
            "path": scope["path"],
            "status": status,
            "ms": round(seconds * 1000, 1),
        }
        for name in ("job", "key", "admission"):
            if name in state:
                line[name] = state[name]
        write_line("request", line)


class _Answer:
    """A response on its way out."""

    def __init__(self, send: Send, request_id: str, *, has_body: bool) -> None:
        self._send = send
        self._request_id = request_id
        self._has_body = has_body
        self.has_begun = False
        self.status = 500

    async def send(self, message: Message) -> None:
        """Send a piece of it."""
        if message["type"] == "http.response.start":
            self.has_begun = True
            self.status = message["status"]
            given = message["headers"] = list(message.get("headers", ()))
            known = dict(given)
            given.append((b"x-request-id", self._request_id.encode()))
            given.extend(header for header in _HEADERS if header[0] not in known)
            is_page = known.get(b"content-type", b"").startswith(b"text/html")
            if is_page and b"content-security-policy" not in known:
                given.append((b"content-security-policy", PAGE_POLICY))
        elif not self._has_body:
            message = {**message, "body": b""}
        await self._send(message)


def _wrong_host(name: str) -> Response:
    detail = (
        f"the host name is {name[:100]!r}, and no keys are needed: use 127.0.0.1 or localhost, have"
        " MEMGATE_ALLOWED_HOSTS name it, or set MEMGATE_API_KEYS=required"
    )
    return problem(421, "WRONG_HOST", detail)


def _is_from_another_site(headers: dict[bytes, bytes], path: str) -> bool:
    """Say whether a browser names an origin that is not ours; programs name none."""
    origin = headers.get(b"origin")
    if origin is None or path.startswith(_PAGES):
        return False
    return urlsplit(origin).netloc.lower() != headers.get(b"host", b"").lower()


def _other_origin() -> Response:
    detail = (
        "this was sent by a page of another site, whose name is in 'Origin'; programs send none:"
        " see /docs"
    )
    return problem(403, "OTHER_ORIGIN", detail)


def _host_name(headers: dict[bytes, bytes]) -> str:
    shown = headers.get(b"host", b"").decode("latin-1").lower()
    return shown.partition("]")[0].lstrip("[") if "[" in shown else shown.partition(":")[0]


def _is_public(name: str) -> bool:
    """Say whether anybody could own this name and point it at us: not an address, with a dot.

    A page from evil.example may make that name resolve to 127.0.0.1 a moment later. To the browser
    we are then the page's own server, and the page may read all our responses.
    """
    return "." in name and not name.endswith(".localhost") and not _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _options(scope: Scope) -> Response:
    """Say which methods a path allows. Nothing about other origins: their pages may not call us."""
    routes = scope["app"].routes
    allowed = {
        method
        for method in _METHODS
        if any(route.matches({**scope, "method": method})[0] is Match.FULL for route in routes)
    }
    if not allowed:
        return problem(404, "NOT_FOUND", "Not Found")
    if "GET" in allowed:
        allowed.add("HEAD")
    return Response(status_code=204, headers={"Allow": ", ".join(sorted(allowed | {"OPTIONS"}))})


def _clean(shown: bytes | None) -> str | None:
    """Accept a caller's request id if it is well-formed: it goes into logs."""
    return shown.decode("ascii") if shown and _REQUEST_ID.fullmatch(shown) else None
