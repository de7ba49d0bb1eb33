"""Live pages: one task reads the store once a second, and sends each browser what changed.

Two kinds of streams: for the overview, and for some jobs that a page waits for. Nothing is read
while nobody watches. A browser that reads too slowly is disconnected; it reconnects by itself, and
then gets everything again. The same happens when a stream gets old, so that its session is checked
again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import anyio.to_thread

from memgate.contract import JobState
from memgate_service.http.errors import ProblemError
from memgate_worker.queue.client import QueueError

_LOOK_SECONDS = 1.0
_HEARTBEAT_SECONDS = 15.0
_STREAM_SECONDS = 300.0

#: how far a browser may be behind
_MAX_BEHIND = 64

#: as EventSource reads it: reconnect after two seconds
GREETING = b"retry: 2000\n\n"
_HEARTBEAT = b": still here\n\n"

Sections = Mapping[str, str]


def write_event(name: str, data: str) -> bytes:
    """Write an event; ``data`` is JSON, which has no line breaks."""
    return f"event: {name}\ndata: {data}\n\n".encode()


class Stream:
    """What one browser is sent."""

    def __init__(self, jobs: frozenset[str], hidden: frozenset[str] = frozenset()) -> None:
        #: the jobs that it waits for; if none, it watches the overview
        self.jobs = jobs
        #: what of the overview its viewer may not see
        self.hidden = hidden
        self.told: dict[str, str] = {}
        self._pieces: asyncio.Queue[bytes | None] = asyncio.Queue(_MAX_BEHIND)
        self.is_over = False

    def tell(self, name: str, data: str) -> None:
        """Send an event, unless it equals the last one of that name."""
        if self.told.get(name) == data or self.is_over:
            return
        self.told[name] = data
        try:
            self._pieces.put_nowait(write_event(name.partition(":")[0], data))
        except asyncio.QueueFull:
            self.end()

    def end(self) -> None:
        """Send nothing more."""
        self.is_over = True
        if self._pieces.full():
            self._pieces.get_nowait()
        self._pieces.put_nowait(None)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield what is sent, and a heartbeat when nothing is."""
        yield GREETING
        deadline = asyncio.get_running_loop().time() + _STREAM_SECONDS
        while asyncio.get_running_loop().time() < deadline:
            try:
                async with asyncio.timeout(_HEARTBEAT_SECONDS):
                    piece = await self._pieces.get()
            except TimeoutError:
                piece = _HEARTBEAT
            if piece is None:
                return
            yield piece


class Hub:
    """All streams."""

    def __init__(
        self,
        read_overview: Callable[[], Sections],
        read_states: Callable[[Sequence[str]], Sequence[JobState | None]],
        max_streams: int,
    ) -> None:
        self._read_overview = read_overview
        self._read_states = read_states
        self._max_streams = max_streams
        self._streams: set[Stream] = set()
        self._somebody = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_over = False

    @property
    def num_streams(self) -> int:
        """How many browsers watch."""
        return len(self._streams)

    @contextmanager
    def stream(
        self, jobs: frozenset[str] = frozenset(), hidden: frozenset[str] = frozenset()
    ) -> Iterator[Stream]:
        """Open a stream for a browser.

        Raises:
            ProblemError: 503 if there are too many already, or the service is stopping.
        """
        if self._is_over or len(self._streams) >= self._max_streams:
            raise ProblemError(
                503,
                f"{self._max_streams} pages are already live; this one shows what was there when"
                " it was loaded",
                code="TOO_MANY_VIEWERS",
                headers={"Retry-After": "30"},
            )
        stream = Stream(jobs, hidden)
        self._streams.add(stream)
        self._somebody.set()
        try:
            yield stream
        finally:
            self._streams.discard(stream)
            if not self._streams:
                self._somebody.clear()

    async def run(self) -> None:
        """Read once a second while somebody watches, until the service stops."""
        self._loop = asyncio.get_running_loop()
        while True:
            await self._somebody.wait()
            try:
                await self._look()
            except QueueError as error:  # the pages say so until it is back
                for stream in self._streams:
                    stream.tell("away", json.dumps(type(error).__name__))
            await asyncio.sleep(_LOOK_SECONDS)

    async def _look(self) -> None:
        if any(not stream.jobs for stream in self._streams):
            sections = await anyio.to_thread.run_sync(self._read_overview)
            for stream in self._streams:
                if not stream.jobs:
                    for name in sections.keys() - stream.hidden:
                        stream.tell(name, sections[name])
        wanted = sorted(frozenset().union(*(stream.jobs for stream in self._streams)))
        if wanted:
            states = await anyio.to_thread.run_sync(self._read_states, wanted)
            known = dict(zip(wanted, states, strict=True))
            for stream in self._streams:
                for job in stream.jobs:
                    state = known.get(job)
                    stream.tell(f"job:{job}", json.dumps({"job": job, "state": state}))
        for stream in self._streams:
            if stream.told.pop("away", None):
                stream.told.pop("here", None)
                stream.tell("here", "true")

    def stop(self) -> None:
        """End all streams; called when the program gets a signal."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        self._is_over = True
        for stream in self._streams:
            stream.end()
