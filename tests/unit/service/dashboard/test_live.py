"""Streams: what changed, to all who watch, by one look a second."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from memgate.contract import JobState
from memgate_service.dashboard import live
from memgate_service.dashboard.live import GREETING, Hub, Stream, write_event
from memgate_service.http.errors import ProblemError
from memgate_worker.queue.client import QueueError


class _Source:
    """Something to look at, that counts the looks."""

    def __init__(self) -> None:
        self.sections = {"texts": '{"a": "1"}', "chart": "[]"}
        self.states: dict[str, JobState] = {}
        self.num_looks = 0
        self.is_away = False

    def read_overview(self) -> dict[str, str]:
        self.num_looks += 1
        if self.is_away:
            raise QueueError("gone")
        return dict(self.sections)

    def read_states(self, jobs: Sequence[str]) -> list[JobState | None]:
        return [self.states.get(job) for job in jobs]


def _hub(source: _Source, most: int = 8) -> Hub:
    return Hub(source.read_overview, source.read_states, most)


async def _heard(stream: Stream, count: int) -> list[bytes]:
    heard: list[bytes] = []
    async for piece in stream.pieces():
        if piece != GREETING:
            heard.append(piece)
        if len(heard) == count:
            break
    return heard


def test_many_viewers_cost_one_look_and_hear_only_changes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Everything at first, then what is new; the store is read once for all of them."""
    monkeypatch.setattr(live, "_LOOK_SECONDS", 0.05)
    source = _Source()

    async def run() -> None:
        hub = _hub(source)
        task = asyncio.create_task(hub.run())
        with hub.stream() as one, hub.stream() as two:
            first = [await _heard(stream, 2) for stream in (one, two)]
            looks = source.num_looks
            source.sections["texts"] = '{"a": "2"}'
            second = [await _heard(stream, 1) for stream in (one, two)]
            assert source.num_looks - looks <= 3
        task.cancel()
        everything = {write_event("texts", '{"a": "1"}'), write_event("chart", "[]")}
        assert [set(heard) for heard in first] == [everything, everything]
        assert second == 2 * [[write_event("texts", '{"a": "2"}')]]

    asyncio.run(run())


def test_nobody_looks_while_nobody_watches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dashboard that is not open costs nothing."""
    monkeypatch.setattr(live, "_LOOK_SECONDS", 0.01)
    source = _Source()

    async def run() -> None:
        hub = _hub(source)
        task = asyncio.create_task(hub.run())
        with hub.stream() as stream:
            await _heard(stream, 2)
        await asyncio.sleep(0.05)
        looks = source.num_looks
        await asyncio.sleep(0.1)
        assert source.num_looks == looks
        task.cancel()

    asyncio.run(run())


def test_who_waits_for_jobs_hears_of_those_alone() -> None:
    """Each state once; the overview is not even read."""
    source = _Source()
    source.states = {"a": JobState.RUNNING, "b": JobState.DONE}

    async def run() -> None:
        hub = _hub(source)
        task = asyncio.create_task(hub.run())
        with hub.stream(frozenset({"a"})) as stream:
            heard = await _heard(stream, 1)
        task.cancel()
        assert heard == [write_event("job", '{"job": "a", "state": "running"}')]
        assert source.num_looks == 0

    asyncio.run(run())


def test_that_the_queue_is_away_is_told_and_that_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pages say so until it is."""
    monkeypatch.setattr(live, "_LOOK_SECONDS", 0.02)
    source = _Source()
    source.is_away = True

    async def run() -> None:
        hub = _hub(source)
        task = asyncio.create_task(hub.run())
        with hub.stream() as stream:
            assert await _heard(stream, 1) == [write_event("away", '"RedisError"')]
            source.is_away = False
            names = {piece.split(b"\n")[0] for piece in await _heard(stream, 3)}
        task.cancel()
        assert names == {b"event: texts", b"event: chart", b"event: here"}

    asyncio.run(run())


def test_streams_are_bounded() -> None:
    """503 with a word that a page can show; a place that is left is free again."""

    async def run() -> None:
        hub = _hub(_Source(), most=1)
        with hub.stream():
            with pytest.raises(ProblemError) as refused, hub.stream():
                pass
            assert (refused.value.status, refused.value.code) == (503, "TOO_MANY_VIEWERS")
        with hub.stream():
            assert hub.num_streams == 1

    asyncio.run(run())


def test_a_browser_that_does_not_read_is_let_go() -> None:
    """What it is behind is bounded; it comes back and begins anew."""

    async def run() -> None:
        stream = Stream(frozenset())
        for number in range(1000):
            stream.tell("texts", str(number))
        pieces = [piece async for piece in stream.pieces()]
        assert stream.is_over
        assert len(pieces) <= 70

    asyncio.run(run())


def test_a_silent_stream_shows_that_it_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxies hang up on silence; and a session is looked at again after a while."""
    monkeypatch.setattr(live, "_HEARTBEAT_SECONDS", 0.01)
    monkeypatch.setattr(live, "_STREAM_SECONDS", 0.05)

    async def run() -> list[bytes]:
        return [piece async for piece in Stream(frozenset()).pieces()]

    pieces = asyncio.run(run())

    assert pieces[0] == GREETING
    assert 1 <= pieces.count(b": still here\n\n") <= 6


def test_all_streams_end_when_the_service_does() -> None:
    """And no new one begins."""

    async def run() -> None:
        hub = _hub(_Source())
        task = asyncio.create_task(hub.run())
        with hub.stream() as stream:
            await _heard(stream, 2)
            hub.stop()
            assert [piece async for piece in stream.pieces()] == [GREETING]
            with pytest.raises(ProblemError), hub.stream():
                pass
        task.cancel()

    asyncio.run(run())
