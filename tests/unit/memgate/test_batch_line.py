"""Two runs of a job tell what it would allocate at any batch size."""

from __future__ import annotations

import pytest

from memgate.batch_line import BatchLine, extrapolate_timeline
from memgate.errors import ExtrapolationError
from memgate.timeline import Alloc, EmptyCache, Free, Timeline, TimelineEvent


def timeline(*events: TimelineEvent) -> Timeline:
    """Make a timeline without labels."""
    return Timeline(events=events)


FOUR = timeline(Alloc(0, 100), Alloc(1, 40), Free(0), EmptyCache())
EIGHT = timeline(Alloc(0, 100), Alloc(1, 80), Free(0), EmptyCache())


@pytest.mark.parametrize(("batch", "want"), [(4, 40), (8, 80), (16, 160), (1, 10)])
def test_sizes_lie_on_a_line(batch: int, want: int) -> None:
    """What does not depend on the batch stays, the rest grows with it; the order is the same."""
    found = extrapolate_timeline(FOUR, EIGHT, BatchLine((4, 8), batch))

    assert found.events == (Alloc(0, 100), Alloc(1, want), Free(0), EmptyCache())


@pytest.mark.parametrize(
    ("other", "want_message"),
    [
        (timeline(Alloc(0, 100)), "4 events at one batch size, 1 at another"),
        (timeline(Alloc(0, 100), Alloc(1, 80, 1), Free(0), EmptyCache()), "what the job allocates"),
        (timeline(Alloc(0, 100), Alloc(1, 80), Free(1), EmptyCache()), "the order of events"),
        (timeline(Alloc(0, 300), Alloc(1, 80), Free(0), EmptyCache()), "what the job allocates"),
    ],
    ids=["fewer", "another stream", "another order", "less than nothing"],
)
def test_runs_that_do_not_match_tell_nothing(other: Timeline, want_message: str) -> None:
    """Then every size must be run."""
    with pytest.raises(ExtrapolationError, match=want_message):
        extrapolate_timeline(FOUR, other, BatchLine((4, 8), 1))
