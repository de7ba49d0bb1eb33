"""A job, a range of GPU counts -> the fewest GPUs that fit, and the cheapest way to divide the job.

Ways are tried in the order of what they cost in time: one GPU, DDP (everything on every GPU),
ZeRO-1 (the optimizer's state is divided), FSDP (everything is), FSDP that computes activations
again, and FSDP that keeps weights in the host's memory besides. A way that costs more is only of
interest with fewer GPUs than a cheaper one needs. Asking is up to the caller: each line of a plan
is an answer of its own, and no line is read off another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict

from memgate.decision import Decision
from memgate.errors import Fault, MemgateError
from memgate.jobspec import DistributedSpec, JobSpec, Strategy
from memgate.jobspec.distributed import USUAL_GPUS_PER_NODE, fields_for
from memgate.report import Estimate
from memgate.units import format_size

#: runs of one plan; the search needs fewer for ranges up to 4096 GPUs
MAX_RUNS = 40


#: faults that may concern one way to divide a job, and not the job
_OF_ONE_WAY = (Fault.CALLER, Fault.JOB, Fault.UNSUPPORTED)


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class PlanLine(_Part):
    """One way to divide a job, with the fewest GPUs that it fits on, or the most if it does not."""

    way: str
    """As people call it: ``fsdp2 + checkpointing``."""
    changes: dict[str, Any]
    """Fields of the spec with their new values."""
    num_gpus: int
    decision: Decision
    """``unknown``: the job cannot be divided in this way."""
    reason: str
    needs_bytes: int | None
    """On each GPU: the rank that needs the most."""
    traffic_bytes: int
    """What each GPU sends in a training step, as recorded, if messages go around a ring."""
    proved_by: Literal["run"] = "run"
    tried: dict[int, Decision]
    """Every number of GPUs that was run, with its decision."""


class GpuPlan(_Part):
    """How many GPUs a job needs, and how it is divided."""

    gpu: str
    fewest_gpus: int | None
    """The smallest number that fits, whatever it costs; null if none of the range does."""
    cheapest: PlanLine | None
    """The cheapest way that fits at all."""
    smallest: PlanLine | None
    """The way that needs the fewest GPUs; of several, the cheapest."""
    lines: list[PlanLine]
    """Every way that was tried, the cheapest first."""
    num_runs: int
    headline: str
    """The answer in one line, in the words of every door."""


class GpuCounts(NamedTuple):
    """How many GPUs there may be."""

    low: int
    high: int

    def list(self) -> list[int]:
        """Return the numbers that are tried: all of one machine, then whole machines."""
        small = range(1, USUAL_GPUS_PER_NODE)
        large = range(USUAL_GPUS_PER_NODE, self.high + 1, USUAL_GPUS_PER_NODE)
        return [number for number in (*small, *large) if self.low <= number <= self.high] or [
            self.low
        ]


class Way(NamedTuple):
    """A way to divide a job."""

    name: str
    strategy: Strategy | None
    checkpoints: bool = False
    offloads: bool = False

    @property
    def depends_on_number(self) -> bool:
        """More GPUs make what each of them holds smaller."""
        return self.strategy not in (None, Strategy.DDP)


_WAYS = (
    Way("one GPU", None),
    Way("ddp", Strategy.DDP),
    Way("zero1", Strategy.ZERO1),
    Way("fsdp2", Strategy.FSDP2),
    Way("fsdp2 + checkpointing", Strategy.FSDP2, checkpoints=True),
    Way("fsdp2 + checkpointing + offload", Strategy.FSDP2, checkpoints=True, offloads=True),
)


def find_plan(
    ask: Callable[[JobSpec], Estimate], job: JobSpec, gpu: str, counts: GpuCounts
) -> GpuPlan:
    """Find the fewest GPUs and the cheapest way; ``ask`` answers for a job, by a run."""
    numbers = counts.list()
    lines: list[PlanLine] = []
    best: int | None = None
    num_runs = 0
    for way in list_ways(job):
        open_numbers = [one for one in numbers if best is None or one < best]
        open_numbers = [one for one in open_numbers if (one == 1) == (way.strategy is None)]
        if not open_numbers or num_runs >= MAX_RUNS:
            continue
        try:
            line = _search(ask, job, way, open_numbers, MAX_RUNS - num_runs)
        except MemgateError as error:
            if way.strategy is None or error.fault not in _OF_ONE_WAY:
                raise
            line = _unknown(job, way, open_numbers[-1], error)
        num_runs += len(line.tried)
        lines.append(line)
        if line.decision is Decision.ADMIT:
            best = line.num_gpus
    return _conclude(gpu, lines, num_runs, counts)


def list_ways(job: JobSpec) -> Iterator[Way]:
    """Yield the ways that are different for a job, the cheapest first."""
    for way in _WAYS:
        if way.checkpoints and not way.offloads and job.gradient_checkpointing:
            continue
        if way.offloads and job.gradient_checkpointing:
            way = way._replace(name="fsdp2 + offload")
        yield way


def divide_job(job: JobSpec, way: Way, num_gpus: int) -> tuple[JobSpec, dict[str, Any]]:
    """Return a job divided in some way over some GPUs, and which fields of it changed."""
    changes: dict[str, Any] = {}
    if way.strategy is None:
        changes["distributed"] = None
    else:
        kept = fields_for(job.distributed, way.strategy)
        divided = {**kept, "strategy": way.strategy.value, "world_size": num_gpus}
        if way.offloads:
            divided["cpu_offload"] = True
        changes["distributed"] = divided
    if way.checkpoints and not job.gradient_checkpointing:
        changes["gradient_checkpointing"] = True
    made = {**changes}
    if made["distributed"] is not None:
        made["distributed"] = DistributedSpec.model_validate(made["distributed"])
    return job.model_copy(update=made), changes


def _search(
    ask: Callable[[JobSpec], Estimate], job: JobSpec, way: Way, numbers: list[int], max_runs: int
) -> PlanLine:
    """Find the fewest GPUs for one way, by halving: more of them never make a rank need more."""
    said: dict[int, Estimate] = {}

    def is_admitted(number: int) -> bool:
        said[number] = ask(divide_job(job, way, number)[0])
        return said[number].decision is Decision.ADMIT

    found = numbers[-1]
    if not way.depends_on_number:
        found = numbers[0]
        is_admitted(found)
    elif is_admitted(found):
        low, high = -1, len(numbers) - 1  # not admitted, admitted
        while high - low > 1 and len(said) < max_runs:
            middle = (low + high) // 2
            if is_admitted(numbers[middle]):
                high = middle
            else:
                low = middle
        found = numbers[high]
    return _line(job, way, found, said)


def _unknown(job: JobSpec, way: Way, number: int, error: MemgateError) -> PlanLine:
    return PlanLine(
        way=way.name,
        changes=divide_job(job, way, number)[1],
        num_gpus=number,
        decision=Decision.UNKNOWN,
        reason=error.message,
        needs_bytes=None,
        traffic_bytes=0,
        tried={number: Decision.UNKNOWN},
    )


def _line(job: JobSpec, way: Way, number: int, said: dict[int, Estimate]) -> PlanLine:
    answer = said[number]
    return PlanLine(
        way=way.name,
        changes=divide_job(job, way, number)[1],
        num_gpus=number,
        decision=answer.decision,
        reason=answer.reasons[0].message,
        needs_bytes=answer.needs_bytes,
        traffic_bytes=ring_bytes(answer.traffic, number),
        tried={one: said[one].decision for one in sorted(said)},
    )


#: how often what is sent passes through a GPU in a ring, in parts of (N - 1) / N
_PASSES = {"all_reduce": 2}


def ring_bytes(traffic: dict[str, int], num_gpus: int) -> int:
    """Return what a GPU sends, if messages go around a ring of all of them."""
    passes = sum(_PASSES.get(kind, 1) * size for kind, size in traffic.items())
    return passes * (num_gpus - 1) // num_gpus


def _conclude(gpu: str, lines: list[PlanLine], num_runs: int, counts: GpuCounts) -> GpuPlan:
    fitting = [line for line in lines if line.decision is Decision.ADMIT]
    cheapest = fitting[0] if fitting else None
    smallest = min(fitting, key=lambda line: line.num_gpus, default=None)
    return GpuPlan(
        gpu=gpu,
        fewest_gpus=smallest.num_gpus if smallest else None,
        cheapest=cheapest,
        smallest=smallest,
        lines=lines,
        num_runs=num_runs,
        headline=_headline(gpu, cheapest, smallest, counts),
    )


def _headline(
    gpu: str, cheapest: PlanLine | None, smallest: PlanLine | None, counts: GpuCounts
) -> str:
    if cheapest is None or smallest is None:
        return f"does not fit on {counts.low} to {counts.high} x {gpu}, however it is divided"
    said = f"fits on {_name(smallest, gpu)}"
    if cheapest is not smallest:
        said += f"; cheaper to run: {_name(cheapest, gpu)}"
    return said


def _name(line: PlanLine, gpu: str) -> str:
    needs = format_size(line.needs_bytes or 0)
    return f"{line.num_gpus} x {gpu} ({line.way}, {needs} on each)"
