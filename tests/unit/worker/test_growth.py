"""By how much more a job keeps with each step."""

from __future__ import annotations

import pytest

from memgate.timeline import Alloc, Free
from memgate_worker.engines.messages import RecordedRun
from memgate_worker.recorder.growth import find_growth, kept_at_steps


@pytest.mark.parametrize(
    ("kept", "want"),
    [
        ([100, 356, 612, 868, 1124], 256),
        ([100, 100, 356, 356, 612, 612, 868, 868, 1124], 128),
        ([100, 356, 612, 868, 612], 0),
        ([100, 356, 612, 868, 1124, *[1124] * 5], 0),
        ([100] * 6, 0),
        ([100, 356], 0),
        ([], 0),
    ],
    ids=[
        *("every step", "every other step", "it is freed", "at first only", "not at all"),
        *("few steps", "no steps"),
    ],
)
def test_what_is_kept_grows_if_it_never_becomes_less(kept: list[int], want: int) -> None:
    """The first three steps make what a job has, and do not count."""
    assert find_growth([0, 9000, 99, *kept]) == want


def test_what_is_kept_is_what_is_allocated_when_a_step_ends() -> None:
    """A number takes a whole block; steps may end before the first event and after the last."""
    run = RecordedRun(
        events=(Alloc(0, 4), Alloc(1, 1025), Free(0), Alloc(2, 512)),
        steps=(0, 1, 2, 3, 4),
        labels=(),
        dispensable=frozenset(),
        phases=(),
        memory_stats={},
        alloc_conf="",
        num_parameters=0,
        num_data_sized_results=0,
        versions={},
        architectures=(),
        cudnn_benchmark=False,
        seconds=1.0,
    )

    assert kept_at_steps(run) == [0, 512, 2048, 1536, 2048]
