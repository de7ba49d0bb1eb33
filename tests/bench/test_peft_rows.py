"""The bench of peft's rows: its lengths stay what was written down, and the cache is emptied."""

from __future__ import annotations

import pytest

from memgate.timeline import Alloc, EmptyCache, Free, Timeline
from memgate.timeline_file.recorded import JobMark, JobPhase
from tests.bench.peft_lengths import LENGTHS, length_of, share_above
from tests.bench.peft_rows import Row, empty_cache_after

MARKS = tuple(JobMark(2 * step, JobPhase.TRAIN, step) for step in range(4))


def test_the_lengths_are_those_that_were_written_down() -> None:
    """They were chosen before any row was run with them, and no row changes them."""
    bucket = (371, 323, 293, 270, 252, 237, 223, 211, 200)

    assert (465, *bucket, 599, *bucket, 518) == LENGTHS


def test_a_length_is_exceeded_by_its_share() -> None:
    """The length of a share is the first that no larger share exceeds."""
    length = length_of(0.01)

    assert share_above(length) <= 0.01 < share_above(length - 1)


@pytest.mark.parametrize(("every", "begins"), [(1, [0, 3, 6, 9]), (2, [0, 2, 5, 7])])
def test_the_cache_is_emptied_between_steps(every: int, begins: list[int]) -> None:
    """After every so many steps, and not before the first."""
    events = tuple(event for step in range(4) for event in (Alloc(step, 1 << 20), Free(step)))

    timeline, moved = empty_cache_after(Timeline(events=events), MARKS, every)

    assert moved == begins
    assert all(isinstance(timeline.events[at - 1], EmptyCache) for at in begins[every::every])


@pytest.mark.parametrize(("day", "every"), [("2025-10-23", 1), ("2026-01-09", 10)])
def test_a_row_says_how_often_the_cache_was_emptied(day: str, every: int) -> None:
    """After each step in runs of before November 2025, after every tenth since."""
    row = Row(experiment="a/b", commit="c", versions={}, day=day, reserved_gib=1.0)

    assert row.emptied_after == every
