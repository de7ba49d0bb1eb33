"""A run of batches of different sizes -> what was run, and what the largest alone would take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from memgate.batch_choice import MAX_RUN, choose_batches, measure_batch, name_batch
from memgate.errors import MemgateError
from memgate.jobspec import JobSpec
from memgate.report import Reason
from memgate.varied import BATCHES_LEFT_OUT, VariedRun
from memgate_worker.engines.traced import TracedJob


def describe_batches(
    spec: JobSpec, traced: TracedJob, run_alone: Callable[[JobSpec], TracedJob]
) -> TracedJob:
    """Add to a run what its batches were; ``run_alone`` runs a job of batches of one size."""
    batches = spec.input.list_batches(spec.batch_size)
    chosen = choose_batches(batches)
    largest = max(batches, key=measure_batch)
    smallest = min(batches, key=measure_batch)
    if largest == smallest:
        return traced
    alone, problem, seconds = None, "", 0.0
    try:
        run = run_alone(spec.model_copy(update={"input": largest}))
        alone, seconds = run.timeline, run.seconds
    except MemgateError as error:
        problem = error.message
    per_step = spec.gradient_accumulation_steps
    steps = [chosen[at : at + per_step] for at in range(0, len(chosen), per_step)]
    varied = VariedRun(
        steps=tuple(" then ".join(name_batch(batches[at]) for at in step) for step in steps),
        numbers=tuple(step[0] // per_step + 1 for step in steps),
        smallest=name_batch(smallest),
        largest=name_batch(largest),
        num_batches=len(chosen),
        largest_alone=alone,
        problem=problem,
    )
    doubts = (*_doubt(len(batches), len(chosen)), *traced.doubts)
    return replace(traced, varied=varied, doubts=doubts, seconds=traced.seconds + seconds)


def _doubt(num_batches: int, num_run: int) -> list[Reason]:
    if num_run == num_batches:
        return []
    message = (
        f"{num_run:,} of {num_batches:,} batches were run, memgate's own limit of {MAX_RUN}: the"
        " first ones, and those that are larger than all before them with their neighbours; what"
        " fragments the others leave was not seen. List fewer batches, or give their distribution"
    )
    return [Reason(code=BATCHES_LEFT_OUT, message=message)]
