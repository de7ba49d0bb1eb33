"""Comparing a replay with a recording: does it notice?"""

from __future__ import annotations

import io
from typing import Any

import pytest

from memgate.allocator.conformance import Comparison, Mismatch, compare, replay_vector
from memgate.allocator.vectors import read_vectors
from memgate.units import MIB
from tests.builders import make_record, mib, to_lines


def _compare(**fields: Any) -> Comparison:
    (vector,) = read_vectors(io.BytesIO(to_lines([make_record(**fields)])))
    return compare(vector, replay_vector(vector))


#: a block too many at event 2: out of memory, caught, and on
DYING: dict[str, Any] = {
    "capacity_bytes": mib(100),
    "on_oom": "continue",
    "events": [["alloc", 1, mib(60), 0], ["free", 1], ["alloc", 2, mib(120), 0], ["empty_cache"]],
}


def test_a_recording_that_matches_has_no_mismatch() -> None:
    """The smallest record there is."""
    comparison = _compare()

    assert comparison.mismatches == ()
    assert comparison.num_events == 2


@pytest.mark.parametrize(
    ("field", "wrong", "want_got"),
    [
        ("peak_reserved", 1, mib(60)),
        ("peak_allocated", 1, mib(60)),
        ("peak_active", 1, mib(60)),
        ("peak_requested", 1, mib(60)),
        ("peak_inactive_split", 1, 0),
        ("final_reserved", 1, 0),
        ("final_allocated", 1, 0),
        ("final_active", 1, 0),
        ("final_requested", 1, 0),
        ("n_segments_peak", 9, 1),
        ("n_segments_final", 9, 0),
        ("num_alloc_retries", 9, 1),
        ("num_ooms", 9, 1),
        ("num_oom_rejections", 9, 0),
        ("num_device_alloc", 9, 1),
        ("num_device_free", 9, 1),
        ("oom", False, True),
        ("oom_at_event", 1, 2),
        ("final_segments", [[1, 1, 1, 0, 1]], []),
        ("segment_event_counts", {}, {"segment_alloc": 1, "segment_free": 1}),
    ],
)
def test_a_wrong_value_is_noticed(field: str, wrong: Any, want_got: Any) -> None:
    """Each figure of a recording counts."""
    comparison = _compare(**DYING, expect={field: wrong})

    assert comparison.mismatches == (Mismatch(id="tiny", field=field, want=wrong, got=want_got),)


@pytest.mark.parametrize(
    ("field", "wrong", "want_event"),
    [
        ("reserved_changes", [[0, mib(60)], [3, 0]], 2),
        ("reserved_changes", [[0, mib(60)]], 2),
        ("segment_events", [[0, "segment_alloc", mib(60), 0]], 2),
        ("ooms", [2, 3], 3),
        ("ooms", [], 2),
        ("allocated_after", [mib(60), 0, 1, 0], 2),
        ("active_after", [mib(60), 0, 0], 3),
    ],
)
def test_a_wrong_series_is_noticed_where_it_parts(field: str, wrong: Any, want_event: int) -> None:
    """The event at which simulator and reality part is named."""
    comparison = _compare(**DYING, expect={field: wrong, "allocated_every": 1})

    assert [(found.field, found.event) for found in comparison.mismatches] == [(field, want_event)]


def test_samples_may_be_sparse() -> None:
    """Every n-th value is compared with every n-th event."""
    expect = {"allocated_after": [mib(60), 0], "allocated_every": 2}

    assert _compare(**DYING, expect=expect).mismatches == ()


class TestTrainingRuns:
    """Fields that only recordings of training runs have."""

    def test_a_program_may_survive_failed_requests(self) -> None:
        """cuDNN catches an out-of-memory and tries less: the program did not die."""
        expect = {"oom": False, "oom_message": None}

        assert _compare(**DYING, expect=expect).mismatches == ()

    def test_a_death_needs_a_failed_request(self) -> None:
        """A program that died of out-of-memory was refused at least once."""
        comparison = _compare(expect={"oom": True, "oom_message": "CUDA out of memory."})

        assert [found.field for found in comparison.mismatches] == ["oom", "oom_message"]

    def test_the_message_is_compared_as_far_as_it_was_recorded(self) -> None:
        """Recordings cut it off."""
        right = "CUDA out of memory. Tried to allocate 120.00 MiB. GPU 0 has"
        assert _compare(**DYING, expect={"oom_message": right}).mismatches == ()

        (wrong,) = _compare(**DYING, expect={"oom_message": right[:-3] + "is"}).mismatches
        assert wrong.got.startswith(right)

    def test_iterations_must_be_found_in_the_curves(self) -> None:
        """State and peaks at the end of each iteration occur, in order, at some event."""
        first, second = [mib(60), mib(60), mib(60), mib(60)], [0, mib(60), 0, mib(60)]
        assert _compare(**DYING, expect={"per_iteration": [first, second]}).mismatches == ()

        (swapped,) = _compare(**DYING, expect={"per_iteration": [second, first]}).mismatches
        assert (swapped.want, swapped.event) == (first, 2)
        (missing,) = _compare(**DYING, expect={"per_iteration": [[1, 1, 1, 1]]}).mismatches
        assert missing.event == 0

    @pytest.mark.parametrize(("recorded", "want_mismatches"), [(60, 0), (58, 1), (62, 1)])
    def test_the_smallest_capacity_suffices_and_less_does_not(
        self, recorded: int, want_mismatches: int
    ) -> None:
        """A capacity that is too small is a mismatch, and so is one that is too large."""
        events = [["alloc", 1, mib(60), 0]]
        comparison = _compare(events=events, expect={"min_capacity_replay": mib(recorded)})

        assert len(comparison.mismatches) == want_mismatches

    def test_an_expandable_peak_is_taken_as_the_recorders_upper_bound(self) -> None:
        """Where the recorder took the peak for granted, only less than it is tried."""
        comparison = _compare(
            config="expandable_segments:True",
            events=[["alloc", 1, mib(60), 0]],
            expect={"min_capacity_replay": mib(60)},
        )

        assert comparison.mismatches == ()


class TestOtherPlacements:
    """Answers under other address policies."""

    def test_a_wrong_peak_is_noticed(self) -> None:
        """Training runs record the peak alone."""
        (found,) = _compare(alt_address_policy={"down": 1}).mismatches

        assert (found.field, found.want, found.got) == ("alt_address_policy.down", 1, 2 * MIB)

    def test_a_wrong_curve_is_noticed(self) -> None:
        """Synthetic sequences record peak, end, failures, and whether the curve is the same."""
        expandable = {"config": "expandable_segments:True"}
        right = {"down": [2 * MIB, 2 * MIB, 0, 1], "reuse": [2 * MIB, 2 * MIB, 0, 1]}
        assert _compare(**expandable, alt_address_policy=right).mismatches == ()

        (found,) = _compare(
            **expandable, alt_address_policy={"reuse": [2 * MIB, 2 * MIB, 0, 0]}
        ).mismatches
        assert found.got == [2 * MIB, 2 * MIB, 0, 1]


def test_a_wrong_counter_is_noticed() -> None:
    """Counters that were recorded are compared one by one; others do not matter."""
    right = {"allocation.all.peak": 1}
    assert _compare(expect={"memory_stats": right}).mismatches == ()

    (found,) = _compare(expect={"memory_stats": right | {"allocation.all.mean": 1}}).mismatches
    assert (found.field, found.got) == ("memory_stats.allocation.all.mean", None)


def test_a_record_that_expects_nothing_is_no_match() -> None:
    """To compare nothing is not to agree."""
    assert not _compare(expect={}).is_match
    assert not _compare(expect={"colour": "blue"}).is_match


def test_a_capacity_below_one_step_is_compared_as_far_as_it_goes() -> None:
    """There is no capacity below zero."""
    comparison = _compare(config="expandable_segments:True", expect={"min_capacity_replay": 5})

    assert [found.field for found in comparison.mismatches] == ["min_capacity_replay"]


def test_an_unknown_expectation_is_named() -> None:
    """What nobody compares is not called a match in silence."""
    assert _compare(expect={"colour": "blue", "peak_allocated": 512}).not_compared == ("colour",)
