"""What of a trace could not be explained, and whether that is too much."""

from __future__ import annotations

import pytest

from memgate.blocks import BlockProblem, pair_blocks
from memgate.doubts import MAX_SHARE, count_problems, find_doubts, tell_diagnostics
from memgate.gpus import GpuTarget, find_gpu
from memgate.links import LinkProblem
from memgate.pipeline import analyze, estimate_timeline
from memgate.plan import DeviceTraits
from memgate.timeline import Timeline
from tests.builders import TINY_TRACES, read_tiny_trace


def _timeline(name: str, share: float, count: int = 3) -> Timeline:
    return Timeline(events=(), diagnostics={name: count}, shares={name: share})


@pytest.mark.parametrize(
    ("name", "want_message"),
    [
        ("no_forward", "11 % of the calls of the backward pass have no call of the forward"),
        ("no_operator", "11 % of the bytes were allocated outside of any operator and left out"),
        ("free_not_seen", "11 % of the blocks have no free, so that their end is a guess"),
        ("other_size", "11 % of the blocks were freed with another size than they had (3)"),
    ],
)
def test_much_that_is_not_explained_is_a_doubt(name: str, want_message: str) -> None:
    """The share, of what, and how often."""
    (doubt,) = find_doubts(_timeline(name, 0.11))

    assert doubt.code == "TRACE_UNEXPLAINED"
    assert want_message in doubt.message


def test_a_little_is_told_and_no_doubt() -> None:
    """A profiler is switched on while a program runs."""
    timeline = _timeline("no_operator", MAX_SHARE)
    assert tell_diagnostics(_timeline("no_operator", 0.01)) == ""

    assert find_doubts(timeline) == []
    assert tell_diagnostics(timeline).startswith("10 % of the bytes")
    assert count_problems(timeline) == {
        **{problem.value: 0 for problem in BlockProblem},
        "no_forward": 0,
        "no_operator": 3,
    }


@pytest.mark.parametrize("name", TINY_TRACES)
def test_a_whole_trace_has_nothing_to_tell(name: str) -> None:
    """Every block and every call of it is tied."""
    timeline = analyze(read_tiny_trace(name), DeviceTraits(compute_capability=(8, 6))).timeline

    assert tell_diagnostics(timeline) == ""
    assert find_doubts(timeline) == []


def test_nothing_is_admitted_upon_a_trace_that_is_not_explained() -> None:
    """However small it seems."""
    answer = estimate_timeline(
        _timeline("no_forward", 0.5),
        GpuTarget(gpu=find_gpu("t4")),
        engine="profile",
        runtime="",
        versions={},
    )

    assert (answer.decision, answer.reasons[0].code) == ("uncertain", "TRACE_UNEXPLAINED")


def test_problems_of_blocks_reach_the_timeline() -> None:
    """Frees that were not seen are counted in stage 2 and judged in the end."""
    trace = read_tiny_trace(TINY_TRACES[0])
    blind = type(trace)(
        memory_events=tuple(event for event in trace.memory_events if event.size_bytes > 0),
        ops=trace.ops,
        module_calls=trace.module_calls,
        annotations=trace.annotations,
        notes=trace.notes,
    )
    unseen = pair_blocks(blind).diagnostics[BlockProblem.FREE_NOT_SEEN]

    timeline = analyze(blind, DeviceTraits(compute_capability=(8, 6))).timeline

    assert timeline.diagnostics["free_not_seen"] == unseen > 0
    assert timeline.shares["free_not_seen"] > MAX_SHARE
    assert LinkProblem.NO_OPERATOR.value in timeline.shares
    assert len(find_doubts(timeline)) == 1
