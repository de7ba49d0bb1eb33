"""Where two timelines part."""

from __future__ import annotations

from memgate.timeline import Alloc, Free, Timeline
from tests.bench.align import differences, steps


def test_what_only_one_of_them_does_is_told() -> None:
    """Sizes are rounded as blocks are; what both do stands around it."""
    ours = Timeline(events=(Alloc(0, 100), Alloc(1, 600), Free(0)), labels=())
    theirs = Timeline(events=(Alloc(7, 512), Alloc(8, 2048), Alloc(9, 1000), Free(7)), labels=())

    told = list(differences(steps(ours), steps(theirs), context=1))

    assert told == [
        "--- event 0 of ours, 0 of the phantom's",
        "    +           512",
        "gpu +         2,048",
        "    +         1,024",
    ]


def test_the_same_timelines_have_nothing_to_tell() -> None:
    """Ids do not matter."""
    ours = Timeline(events=(Alloc(0, 100), Free(0)), labels=())
    theirs = Timeline(events=(Alloc(3, 100), Free(3)), labels=())

    assert list(differences(steps(ours), steps(theirs), context=1)) == []
