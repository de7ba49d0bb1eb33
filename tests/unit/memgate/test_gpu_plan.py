"""The fewest GPUs, and the cheapest way to divide a job."""

from __future__ import annotations

from typing import Any

import pytest

from memgate.decision import Decision
from memgate.errors import OperatorError, UnsupportedJobError
from memgate.gpu_plan import GpuCounts, divide_job, find_plan, list_ways, ring_bytes
from memgate.jobspec import JobSpec, parse_job_spec
from memgate.report import Estimate
from memgate.units import GIB
from tests.builders import build_estimate

JOB: dict[str, Any] = {
    "model": {"source": "transformers", "name": "gpt2"},
    "input": {"sequence_length": 128},
    "batch_size": 2,
}
HAS = 80


def _ask(job: JobSpec) -> Estimate:
    """Answer as if weights, gradients and state took 160 GiB, and activations 40 GiB."""
    divided = job.distributed
    share = 1 if divided is None else divided.world_size
    whole = {"ddp": 160, "zero1": 80 + 80 // share}
    strategy = None if divided is None else divided.strategy.value
    needs = whole.get(str(strategy), 160 / share) + (5 if job.gradient_checkpointing else 40)
    if divided is not None and divided.cpu_offload:
        needs /= 4
    decision = Decision.ADMIT if needs <= HAS else Decision.REJECT
    return build_estimate(
        decision=decision, needs_bytes=int(needs * GIB), traffic={"all_reduce": 100}
    )


def _plan(low: int, high: int, ask: Any = _ask, **job: Any) -> Any:
    return find_plan(ask, parse_job_spec(JOB | job), "h100-80", GpuCounts(low, high))


def test_a_dearer_way_is_for_fewer_gpus() -> None:
    """Each line has the fewest GPUs of its way, and none is worse than a cheaper one."""
    plan = _plan(1, 64)

    assert [(line.way, line.num_gpus, line.decision) for line in plan.lines] == [
        ("one GPU", 1, "reject"),
        ("ddp", 2, "reject"),
        ("zero1", 64, "reject"),
        ("fsdp2", 4, "admit"),
        ("fsdp2 + checkpointing", 3, "admit"),
        ("fsdp2 + checkpointing + offload", 2, "admit"),
    ]
    assert (plan.fewest_gpus, plan.smallest.way) == (2, "fsdp2 + checkpointing + offload")
    assert plan.cheapest.way == "fsdp2"
    assert plan.smallest.changes == {
        "distributed": {"strategy": "fsdp2", "world_size": 2, "cpu_offload": True},
        "gradient_checkpointing": True,
    }
    assert plan.num_runs == sum(len(line.tried) for line in plan.lines) <= 16
    assert all(line.proved_by == "run" for line in plan.lines)
    assert plan.headline.startswith("fits on 2 x h100-80 (fsdp2 + checkpointing + offload")
    assert "; cheaper to run: 4 x h100-80 (fsdp2, " in plan.headline


def test_every_line_was_run_with_its_own_number() -> None:
    """And so was the next smaller one, which does not fit."""
    line = next(line for line in _plan(1, 64).lines if line.way == "fsdp2")

    assert (line.tried[4], line.tried[3]) == ("admit", "reject")


def test_what_fits_on_one_gpu_is_not_divided() -> None:
    """There is nothing that needs fewer."""
    plan = _plan(1, 64, lambda _: build_estimate())

    assert [line.way for line in plan.lines] == ["one GPU"]
    assert plan.headline == "fits on 1 x h100-80 (one GPU, 5.00 GiB on each)"
    assert plan.smallest.changes == {"distributed": None}


def test_nothing_may_fit() -> None:
    """Then the last line has the most GPUs, and what a rank needs there."""
    plan = _plan(1, 2, lambda _: build_estimate(decision=Decision.REJECT))

    assert (plan.fewest_gpus, plan.cheapest, plan.smallest) == (None, None, None)
    assert plan.headline == "does not fit on 1 to 2 x h100-80, however it is divided"


def test_a_way_that_a_job_cannot_take_says_why() -> None:
    """The others are tried all the same; what is wrong with memgate itself is not hidden."""

    def ask(job: JobSpec) -> Estimate:
        if job.distributed is not None and job.distributed.strategy == "ddp":
            raise UnsupportedJobError("it has no gradients to send")
        return _ask(job)

    def break_down(_: JobSpec) -> Estimate:
        raise OperatorError("no runtime")

    line = _plan(1, 64, ask).lines[1]
    assert (line.way, line.decision, line.needs_bytes) == ("ddp", "unknown", None)
    assert line.reason == "it has no gradients to send"
    with pytest.raises(OperatorError):
        _plan(1, 64, break_down)


def test_checkpointing_is_no_way_of_its_own_if_the_job_has_it() -> None:
    """Offload comes after plain FSDP then."""
    ways = [way.name for way in list_ways(parse_job_spec(JOB | {"gradient_checkpointing": True}))]

    assert ways == ["one GPU", "ddp", "zero1", "fsdp2", "fsdp2 + offload"]


@pytest.mark.parametrize(
    ("counts", "want"),
    [
        ((1, 24), [*range(1, 9), 16, 24]),
        ((2, 4), [2, 3, 4]),
        ((12, 20), [16]),
        ((12, 15), [12]),
    ],
)
def test_machines_are_taken_whole(counts: tuple[int, int], want: list[int]) -> None:
    """Beyond one, nobody asks for half of it; a range without a whole one has its smallest."""
    assert GpuCounts(*counts).list() == want


def test_a_job_keeps_what_it_says_about_fsdp() -> None:
    """Types of weights decide as much as their division."""
    given = {"strategy": "fsdp", "world_size": 4, "mixed_precision": {"param": "bf16"}}
    job = parse_job_spec(JOB | {"distributed": given})
    way = next(way for way in list_ways(job) if way.name == "fsdp2")

    divided = divide_job(job, way, 16)[0].distributed

    assert divided is not None
    assert divided.mixed_precision is not None
    assert (divided.strategy, divided.world_size, divided.mixed_precision.param) == (
        "fsdp2",
        16,
        "bf16",
    )


def test_messages_go_around_a_ring() -> None:
    """A reduction passes twice: once to add up, once to tell."""
    assert ring_bytes({"all_reduce": 800, "all_gather": 80}, 8) == (2 * 800 + 80) * 7 // 8
    assert ring_bytes({}, 1) == 0
