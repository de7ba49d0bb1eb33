"""Callers take turns inside a service."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from memgate_service.http import turns
from memgate_service.http.turns import CallerTurns, end_turn


class _App:
    """Notes how many requests it works on, and answers each when the test says so."""

    def __init__(self, status: int = 200, *, waits_for_a_job: bool = False) -> None:
        self.go = asyncio.Event()
        self.num_begun = 0
        self._status = status
        self._waits_for_a_job = waits_for_a_job

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.num_begun += 1
        if self._waits_for_a_job:
            end_turn()
        await self.go.wait()
        await send({"type": "http.response.start", "status": self._status})
        await send({"type": "http.response.body"})


def _request(key: str) -> dict[str, Any]:
    headers = [(b"authorization", f"Bearer {key}".encode())] if key else []
    return {"type": "http", "headers": headers}


async def _nothing() -> Any:
    raise AssertionError("nobody reads the body")


async def _discard(message: Any) -> None:
    del message


async def _settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def _run(test: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 30))


@pytest.mark.parametrize(("key", "want_at_once"), [("a", 3), ("", 8)], ids=["a key", "no key"])
def test_few_requests_of_a_caller_are_worked_on_at_once(key: str, want_at_once: int) -> None:
    """GIVEN eight requests of one caller THEN three begin; without keys, callers are unknown."""

    async def test() -> None:
        app = _App()
        middleware = CallerTurns(app)
        tasks = [
            asyncio.create_task(middleware(_request(key), _nothing, _discard)) for _ in range(8)
        ]
        await _settle()
        assert app.num_begun == want_at_once

        app.go.set()
        await asyncio.gather(*tasks)
        assert app.num_begun == 8

    _run(test)


def test_another_caller_has_turns_of_its_own() -> None:
    """Whatever the first one has sent."""

    async def test() -> None:
        app = _App()
        middleware = CallerTurns(app)
        keys = ["a"] * 8 + ["b"]
        tasks = [asyncio.create_task(middleware(_request(key), _nothing, _discard)) for key in keys]
        await _settle()
        assert app.num_begun == 4
        app.go.set()
        await asyncio.gather(*tasks)

    _run(test)


def test_other_cookies_beside_a_key_are_the_same_caller() -> None:
    """Nobody has more turns by adding what is not looked at."""

    async def test() -> None:
        app = _App()
        middleware = CallerTurns(app)
        asked = [_request("a") for _ in range(8)]
        for number, request in enumerate(asked):
            request["headers"].append((b"cookie", b"x=%d" % number))
        tasks = [asyncio.create_task(middleware(request, _nothing, _discard)) for request in asked]
        await _settle()
        assert app.num_begun == 3
        app.go.set()
        await asyncio.gather(*tasks)

    _run(test)


def test_who_waits_for_a_job_has_no_turn() -> None:
    """It takes none of the service's time."""

    async def test() -> None:
        app = _App(waits_for_a_job=True)
        middleware = CallerTurns(app)
        tasks = [
            asyncio.create_task(middleware(_request("a"), _nothing, _discard)) for _ in range(8)
        ]
        await _settle()
        assert app.num_begun == 8
        app.go.set()
        await asyncio.gather(*tasks)

    _run(test)


def test_a_turn_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """GIVEN requests that do not end THEN the same caller's next ones begin all the same."""
    monkeypatch.setattr(turns, "_PATIENCE_SECONDS", 0.01)

    async def test() -> None:
        app = _App()
        middleware = CallerTurns(app)
        tasks = [
            asyncio.create_task(middleware(_request("a"), _nothing, _discard)) for _ in range(5)
        ]
        while app.num_begun < 5:
            await asyncio.sleep(0.005)
        app.go.set()
        await asyncio.gather(*tasks)

    _run(test)


def test_refusals_come_later_and_later_up_to_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first comes at once, and so does the first after a pause; other answers always do."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def test() -> None:
        app = _App(status=429)
        app.go.set()
        middleware = CallerTurns(app)
        with monkeypatch.context() as patched:
            patched.setattr("memgate_service.http.turns.asyncio.sleep", sleep)
            for _ in range(60):
                await middleware(_request("a"), _nothing, _discard)
        assert slept[:3] == pytest.approx([0.02, 0.04, 0.06])
        assert max(slept) == 1.0
        assert len(slept) == 59

        monkeypatch.setattr(turns, "_FORGIVEN_SECONDS", 0.0)
        num_slept = len(slept)
        await middleware(_request("a"), _nothing, _discard)
        assert len(slept) == num_slept

    _run(test)


def test_only_so_many_refusals_are_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are sent at once: what is held takes memory."""
    monkeypatch.setattr(turns, "_MAX_HELD", 0)

    async def test() -> None:
        app = _App(status=429)
        app.go.set()
        middleware = CallerTurns(app)
        for _ in range(200):  # a second each at the end, if they were held back
            await middleware(_request("a"), _nothing, _discard)

    _run(test)
