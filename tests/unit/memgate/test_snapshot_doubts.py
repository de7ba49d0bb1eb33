"""Memory snapshots: how far they are trusted."""

from __future__ import annotations

from typing import Any

import pytest

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.replay import Replay, replay
from memgate.snapshots import repeats
from memgate.snapshots.reading import DeviceHistory
from memgate.timeline import (
    Alloc,
)
from memgate.units import GIB, MIB
from tests.snapshots import (
    BASE,
    MODEL,
    make_block,
    make_document,
    make_event,
    make_free,
    make_segment,
    read_document,
)

FREE = {"state": "inactive"}


def _codes(history: DeviceHistory) -> list[str]:
    return [doubt.code for doubt in history.doubts]


def _replay(history: DeviceHistory, capacity: int = 64 * GIB) -> Replay:
    return replay(history.timeline, parse_alloc_conf(history.alloc_conf), capacity)


def _read_one(document: Any, **options: Any) -> DeviceHistory:
    (history,) = read_document(document, **options)
    return history


def test_a_history_that_contradicts_its_end_is_doubted() -> None:
    """Frees that are missing, blocks in no segment: an answer, but no admission."""
    trace = [
        make_event("alloc", BASE),
        make_event("alloc", BASE),
        make_event("free_requested", BASE + GIB),
        *make_free(BASE),
        *make_free(BASE),
        make_event("free_requested", BASE + GIB),
    ]
    history = _read_one(make_document([make_segment(make_block(3000))], trace))

    assert "HISTORY_CONTRADICTS" in _codes(history)
    assert _replay(history).oom is None


def test_a_replay_that_reserves_less_than_the_file_is_doubted() -> None:
    """Settings, or an allocator, that are not ours."""
    odd = make_segment(make_block(MIB), make_block(GIB + 1, **FREE))
    history = _read_one(make_document([odd], [make_event("snapshot"), make_event("oom")]))

    assert "REPLAY_DIFFERS" in _codes(history)


def _steps(sizes: list[int], count: int, growth: int = 0) -> list[dict[str, Any]]:
    """Make steps that allocate some blocks, and free all of them but ``growth`` bytes."""
    trace = []
    for number in range(count):
        addresses = [BASE + (at + 1) * GIB for at in range(len(sizes))]
        trace += [
            make_event("alloc", address, size)
            for address, size in zip(addresses, sizes, strict=True)
        ]
        for address, size in zip(addresses, sizes, strict=True):
            trace += make_free(address, size)
        if growth:
            trace.append(make_event("alloc", BASE + 900 * GIB + number * GIB, growth))
    return trace


@pytest.mark.parametrize(
    ("trace", "want"),
    [
        (_steps([MIB, 2 * MIB, 3 * MIB], 2), []),
        (_steps([MIB, 2 * MIB, 3 * MIB], 3, growth=512), []),
        (_steps([MIB, 2 * MIB, 3 * MIB], 3, growth=MIB), ["NO_REPEATED_STEP"]),
        (_steps([MIB, 2 * MIB, 3 * MIB], 1), ["NO_REPEATED_STEP"]),
        (_steps([number * MIB for number in range(1, 40)] + [7, 7], 1), ["NO_REPEATED_STEP"]),
        ([make_event("segment_alloc", size=2 * MIB)], ["NO_REPEATED_STEP"]),
    ],
    ids=["twice", "collecting losses", "growing", "once", "a loop in a step", "no request"],
)
def test_a_step_must_be_seen_twice(trace: list[dict[str, Any]], want: list[str]) -> None:
    """The same sizes in the same order, with as much in use."""
    history = _read_one(make_document([make_segment(make_block(2 * MIB, **FREE))], trace))

    assert [code for code in _codes(history) if code == "NO_REPEATED_STEP"] == want


def test_the_search_for_steps_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many requests are alike."""
    monkeypatch.setattr(repeats, "_MAX_EFFORT", 0)

    assert "NO_REPEATED_STEP" in _codes(_read_one(make_document([], _steps([MIB], 5))))


def test_out_of_memory_is_the_last_request_of_a_lower_bound() -> None:
    """What failed is asked for again, unless the program went on without it."""
    died = [make_event("alloc"), make_event("oom", 5 * MIB, 3 * GIB), *make_free()]
    went_on = [*died, make_event("oom", MIB, 2**59), make_event("alloc")]
    mistaken = [make_event("alloc"), make_event("oom", 5 * MIB, 2**59)]

    ended = _read_one(make_document([], died))
    survived = _read_one(make_document([make_segment(make_block())], went_on))
    huge = _read_one(make_document([make_segment(make_block())], mistaken))

    assert ended.timeline.events[1] == Alloc(1, 3 * GIB)
    assert "asked for 3.00 GiB, with 5.00 MiB left" in ended.doubts[0].message
    assert len([one for one in survived.timeline.events if isinstance(one, Alloc)]) == 2
    assert "the last of 2 such requests" in survived.doubts[0].message
    assert [_codes(one)[0] for one in (ended, survived, huge)] == ["ENDED_IN_OOM"] * 3
    assert _replay(huge, GIB).oom is not None


def test_a_lost_beginning_shows_in_blocks_that_have_a_stack() -> None:
    """They were recorded; without any stacks it cannot be known."""
    segment = make_segment(make_block(2 * MIB, frames=MODEL))
    without = make_segment(make_block(2 * MIB))
    trace = _steps([MIB, 2 * MIB], 3)
    bare = [entry | {"frames": []} for entry in trace]

    wrapped = _read_one(make_document([segment], trace))
    late = _read_one(make_document([without], trace))
    unknown = _read_one(make_document([without], bare))

    assert _codes(wrapped)[0] == "HISTORY_WRAPPED"
    assert "HISTORY_WRAPPED" not in _codes(late)
    assert "may have been overwritten" in unknown.doubts[0].message


def test_without_a_history_only_the_end_is_known() -> None:
    """As when nothing was recorded."""
    document = {"segments": [make_segment(make_block(20 * MIB))]}

    history = _read_one(document)

    assert _codes(history) == ["NO_HISTORY"]
    assert _replay(history).peak_reserved_bytes == 20 * MIB
