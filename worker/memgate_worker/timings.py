"""A way to get a job's timeline -> its estimate, with how long each part took."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from memgate.capacity import MemoryNeeds
from memgate.gpus import GpuTarget
from memgate.report import Estimate
from memgate_worker.engines.traced import TracedJob
from memgate_worker.verdicts import answer_run


class TimedEstimate(NamedTuple):
    """An estimate with its ``timings_ms``, and what it was made from: the rank that decided."""

    estimate: Estimate
    traced: TracedJob
    needs: MemoryNeeds


def time_estimate(trace: Callable[[], TracedJob], target: GpuTarget) -> TimedEstimate:
    """Get a timeline, estimate from it, and fill in ``timings_ms``: the same keys at every door.

    ``run``: in the job's own process, 0 if an earlier run is replayed; ``trace``: until there was
    a timeline; ``replay``: from there to the answer; ``total``: both.
    """
    start = time.perf_counter()
    traced = trace()
    traced_at = time.perf_counter()
    answer = answer_run(traced, target)
    end = time.perf_counter()
    seconds = {
        "run": sum(one.seconds for one in traced.ranks),
        "trace": traced_at - start,
        "replay": end - traced_at,
        "total": end - start,
    }
    timings_ms = {name: round(value * 1000) for name, value in seconds.items()}
    said = answer.estimate.model_copy(update={"timings_ms": timings_ms})
    return TimedEstimate(said, answer.traced, answer.needs)
