"""Timeline files with several ranks of a job."""

from __future__ import annotations

from typing import Any

import pytest

from memgate.decision import Decision
from memgate.errors import TimelineFileError
from memgate.gpus import parse_gpu
from memgate.report import Reason
from memgate.timeline import Alloc, Timeline
from memgate.timeline_file.answers import answer_recorded
from memgate.timeline_file.reading import read_timeline
from memgate.timeline_file.recorded import RecordedTimeline
from memgate.timeline_file.writing import write_timeline
from memgate.units import GIB, MIB
from tests.timeline_files import (
    change_file,
    close_document,
    make_plain,
    make_recorded,
    open_document,
)


def _rank(rank: int, size_bytes: int, **changes: Any) -> RecordedTimeline:
    timeline = Timeline(events=(Alloc(0, size_bytes),))
    return make_plain(timeline=timeline, rank=rank, world_size=8, **changes)


@pytest.fixture
def recorded() -> RecordedTimeline:
    """A job of eight processes, of which the first and the last were run."""
    return _rank(0, 2 * GIB, other_ranks=(_rank(7, 8 * GIB),))


def test_every_rank_is_kept() -> None:
    """With all that is its own."""
    doubts = (Reason(code="STILL_GROWING", message="more with each step"),)
    other = make_recorded(rank=3, world_size=4, alloc_conf="", num_parameters=7, doubts=doubts)
    recorded = make_recorded(rank=0, world_size=4, other_ranks=(other,))

    assert read_timeline(write_timeline(recorded)) == recorded


def test_the_worst_rank_decides(recorded: RecordedTimeline) -> None:
    """And the answer is about that one."""
    answer = answer_recorded(read_timeline(write_timeline(recorded)), parse_gpu("rtx-3060"))

    said = answer.estimate
    assert answer.recorded.rank == 7
    assert said.world_size == 8
    assert [one.rank for one in said.ranks] == [0, 7]
    assert said.needs_bytes == said.ranks[1].needs_bytes > said.ranks[0].needs_bytes
    assert said.why("RANKS_RUN")


def test_a_doubt_about_one_rank_is_a_doubt_about_the_job(recorded: RecordedTimeline) -> None:
    """Whichever needs the most."""
    doubts = (Reason(code="STILL_GROWING", message="more with each step"),)
    first = _rank(0, MIB, doubts=doubts, other_ranks=recorded.other_ranks)

    said = answer_recorded(first, parse_gpu("rtx-3060")).estimate

    assert said.decision is Decision.UNCERTAIN
    assert said.fits_on == []


def test_a_file_of_an_older_format_has_one_rank() -> None:
    """A reader fills in what came later."""
    document = open_document(write_timeline(make_plain()))
    for name in ("rank", "world_size", "other_ranks"):
        del document[name]

    recorded = read_timeline(close_document(document))

    assert (recorded.rank, recorded.world_size, recorded.other_ranks) == (0, 1, ())


@pytest.mark.parametrize(
    ("path", "value", "want"),
    [
        ("world_size", 7, r"world_size is 7: there is a rank 7"),
        ("world_size", 0, r"world_size is 0"),
        ("world_size", 1 << 40, r"world_size is 1099511627776"),
        ("rank", 7, r"other_ranks\[0\]\.rank is 7: each rank is there once"),
        ("rank", -1, r"rank is -1"),
        ("other_ranks.0.rank", 8, r"world_size is 8: there is a rank 8"),
        ("other_ranks.0.alloc_conf", "nonsense", r"other_ranks\[0\]: alloc_conf is"),
        ("other_ranks.0.events.actions", b"", r"other_ranks\[0\]: events.actions is empty"),
        ("other_ranks.0.events.blocks", b"abc", r"other_ranks\[0\]: events.blocks is 0.75 entries"),
        ("other_ranks.0.notes", [["FITS", "all"]], r"other_ranks\[0\].notes\[0\]"),
        ("other_ranks", [{}], r"other_ranks"),
        ("other_ranks", 5, r"other_ranks is 5"),
    ],
)
def test_a_rank_that_breaks_a_rule_is_refused(
    recorded: RecordedTimeline, path: str, value: Any, want: str
) -> None:
    """With its field, its value and the rule."""
    with pytest.raises(TimelineFileError, match=want):
        read_timeline(change_file(path, value, recorded))


def test_a_file_has_a_limited_number_of_ranks(recorded: RecordedTimeline) -> None:
    """As of everything."""
    document = open_document(write_timeline(recorded))
    document["other_ranks"] *= 64

    with pytest.raises(TimelineFileError, match="other_ranks"):
        read_timeline(close_document(document))


def test_events_of_all_ranks_are_counted() -> None:
    """The limit is for the file."""
    timeline = Timeline(events=(Alloc(0, MIB),) * 1_500_000)
    other = make_plain(timeline=timeline, rank=1, world_size=2)
    recorded = make_plain(timeline=timeline, world_size=2, other_ranks=(other,))

    with pytest.raises(Exception, match="3000000 events"):
        write_timeline(recorded)
