"""Who looks at a page, and what they may do.

A browser cannot send a key when somebody follows a link. So a person shows a key once, and the
browser gets a cookie: a random token that stands for the key; the store has only its digest.
Revoking a key ends its sessions. Where no keys are needed, everybody may do everything.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Awaitable, Callable
from typing import Annotated, NamedTuple
from urllib.parse import quote, urlsplit

import anyio.to_thread
from cachetools import TTLCache
from fastapi import Depends, FastAPI, Request
from fastapi.responses import RedirectResponse, Response
from limits import parse
from limits.storage import MemoryStorage
from limits.strategies import FixedWindowRateLimiter

from memgate.owner import Owner
from memgate_service.http.access import Gatekeeper
from memgate_service.http.errors import ProblemError
from memgate_service.http.ownership import Actor
from memgate_service.settings import ServiceSettings
from memgate_worker.queue.client import QueueClient
from memgate_worker.queue.keys import ApiKey, Right, Role

COOKIE = "memgate_session"

#: a working day; then the key must be given again
SESSION_SECONDS = 12 * 3600

#: how long a session may outlive its revoked key
_REMEMBERED_SECONDS = 10.0

#: wrong keys from one address; people mistype, and whoever guesses needs far more
_MAX_GUESSES = parse("10/minute")


class Viewer(NamedTuple):
    """Somebody who looks at pages."""

    rights: Right
    #: None where no keys are needed, and of a guest
    key: ApiKey | None = None
    #: has nothing but the link to a page
    is_guest: bool = False

    @property
    def actor(self) -> Actor:
        """Whose questions they may see."""
        return Actor(self.rights) if self.key is None else Actor.of(self.key)

    @property
    def owner(self) -> Owner:
        """Whose question they ask; its key is empty where no keys are needed."""
        return Owner(key=self.key.key_id if self.key else "")

    @property
    def may_submit(self) -> bool:
        """Questions may be asked."""
        return Right.SUBMIT in self.rights

    @property
    def sees_all(self) -> bool:
        """Everybody's questions are shown."""
        return Right.READ_ALL in self.rights

    def as_guest(self) -> Viewer:
        """Return them as somebody who was only given a link."""
        return self._replace(rights=Right(0))


#: somebody without a session who has a link
GUEST = Viewer(Right(0), is_guest=True)


class SignInNeededError(Exception):
    """A page was requested without a session."""


class Viewers:
    """Sessions: opened with a key, found by a cookie, ended."""

    def __init__(
        self, settings: ServiceSettings, queue: QueueClient, gatekeeper: Gatekeeper
    ) -> None:
        self._needs_keys = settings.needs_keys
        self._queue = queue
        self.gatekeeper = gatekeeper
        self._known: TTLCache[str, ApiKey] = TTLCache(10_000, _REMEMBERED_SECONDS)
        self._guesses = FixedWindowRateLimiter(MemoryStorage())

    def note_guess(self, address: str) -> None:
        """Count a wrong key."""
        self._guesses.hit(_MAX_GUESSES, address)

    def refuse_guesses(self, address: str) -> None:
        """Refuse an address that has shown too many wrong keys.

        Raises:
            ProblemError: 429, with the time after which it may try again.
        """
        if self._guesses.test(_MAX_GUESSES, address):
            return
        reset = self._guesses.get_window_stats(_MAX_GUESSES, address).reset_time
        raise ProblemError(
            429,
            f"too many wrong keys came from this address: {_MAX_GUESSES} at most; wait a minute",
            headers={"Retry-After": str(max(1, round(reset - time.time())))},
        )

    @property
    def anybody(self) -> Viewer | None:
        """The viewer if no keys are needed."""
        return None if self._needs_keys else Viewer(Role.ADMIN.rights)

    async def find(self, request: Request) -> Viewer | None:
        """Return who asks, None without a session."""
        if not self._needs_keys:
            return Viewer(Role.ADMIN.rights)
        token = request.cookies.get(COOKIE, "")
        if not token:
            return None
        digest = _digest(token)
        key = self._known.get(digest)
        if key is None:
            key = await anyio.to_thread.run_sync(self._look_up, digest)
            if key is None:
                return None
            self._known[digest] = key
        request.state.key, request.state.api_key = key.key_id, key
        return Viewer(key.rights, key)

    def _look_up(self, digest: str) -> ApiKey | None:
        key_id = self._queue.load_session(digest)
        return None if key_id is None else self._queue.keys.find(key_id)

    def open(self, shown: str) -> str | None:
        """Open a session with a key; return its token, None if the key is not valid."""
        key = self._queue.keys.check(shown.strip())
        if key is None:
            return None
        token = secrets.token_urlsafe(32)
        self._queue.save_session(_digest(token), key.key_id, SESSION_SECONDS)
        return token

    def close(self, token: str) -> None:
        """End a session."""
        digest = _digest(token)
        self._known.pop(digest, None)
        self._queue.drop_session(digest)


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def _viewers(request: Request) -> Viewers:
    viewers = request.app.state.viewers
    assert isinstance(viewers, Viewers)
    return viewers


async def _page(request: Request) -> Viewer:
    viewer = await _viewers(request).find(request)
    if viewer is None:
        raise SignInNeededError
    request.state.viewer = viewer
    return viewer


async def _link(request: Request) -> Viewer:
    """Return who asks for a page that may be opened with its link alone."""
    viewer = await _viewers(request).find(request)
    if viewer is not None and viewer.key is not None:
        _viewers(request).gatekeeper.let_in(request, viewer.key, Right(0))
    request.state.viewer = viewer = viewer or GUEST
    return viewer


def _data(right: Right) -> Callable[[Request], Awaitable[Viewer]]:
    async def check(request: Request) -> Viewer:
        viewers = _viewers(request)
        viewer = await viewers.find(request)
        if viewer is None:
            raise ProblemError(401, "sign in again: the session has ended")
        if viewer.key is not None:
            viewers.gatekeeper.let_in(request, viewer.key, right)
        return viewer

    return check


async def _submits(request: Request) -> Viewer:
    refuse_other_origins(request)
    return await _data(Right.SUBMIT)(request)


def refuse_other_origins(request: Request) -> None:
    """Refuse requests that another site's page makes a browser send.

    Raises:
        ProblemError: 403 unless the browser says that one of our own pages sent it.
    """
    origin = request.headers.get("origin", "")
    if urlsplit(origin).netloc != request.headers.get("host", ""):
        detail = "this was not sent by a page of this service; programs use the API: see /docs"
        raise ProblemError(403, detail, code="OTHER_ORIGIN")


#: anybody who may see a page; others are asked for a key
PageViewer = Annotated[Viewer, Depends(_page)]
#: the same for what pages fetch: others are refused
DataViewer = Annotated[Viewer, Depends(_data(Right.READ_OWN))]
#: anybody, for pages and data that may be opened with the link: ``links`` decides
LinkViewer = Annotated[Viewer, Depends(_link)]
#: anybody who may ask questions, from one of our pages
Submitter = Annotated[Viewer, Depends(_submits)]


def add_sign_in(app: FastAPI) -> None:
    """Redirect viewers without a session to the sign-in page."""

    def ask_for_key(request: Request, _: Exception) -> Response:
        asked = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"/ui/sign-in?next={quote(asked, safe='')}", 303)

    app.add_exception_handler(SignInNeededError, ask_for_key)
