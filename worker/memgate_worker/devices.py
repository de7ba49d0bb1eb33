"""What was recorded of each device of a job -> the answer for the worst of them.

Each device is answered for, on a GPU of its own of the kind that was asked about. The worst answer
counts, and says what the others are.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from memgate.explanation import name_verdict
from memgate.gpus import GpuTarget
from memgate.measured import MEASURED
from memgate.report import Estimate, Reason
from memgate.units import format_size
from memgate_worker.engines.traced import TracedJob
from memgate_worker.timings import TimedEstimate
from memgate_worker.verdicts import answer_run

#: with a doubt, what such a file shows is the least that the job takes, wherever it runs
_SHOWS_LEAST = ("snapshot", MEASURED)


def estimate_devices(recorded: Iterable[tuple[int, TracedJob]], target: GpuTarget) -> TimedEstimate:
    """Answer for each device, which come with their numbers, and return the worst answer.

    Only the worst is kept while the next is worked out.
    """
    start = time.perf_counter()
    tracing = _Stopwatch()
    worst: tuple[int, TimedEstimate] | None = None
    told: list[str] = []
    fits_on: list[list[str]] = []
    for number, traced in tracing.time(recorded):
        answered = answer_run(traced, target)
        said = answered.estimate
        told.append(
            f"device {number} {name_verdict(said.decision, said.gpu)}, needs"
            f" {format_size(said.needs_bytes)}"
        )
        shows_least = traced.doubts and traced.engine in _SHOWS_LEAST
        fits_on.append([] if shows_least else said.fits_on)
        if worst is None or _rank(said) < _rank(worst[1].estimate):
            worst = number, TimedEstimate(*answered)
    assert worst is not None, "a file of no device is refused"
    number, answer = worst
    reasons = list(answer.estimate.reasons)
    if len(told) > 1:
        reasons.append(_tell_devices(told, number))
    total = time.perf_counter() - start
    update: dict[str, object] = {
        "reasons": reasons,
        "fits_on": [
            name for name in answer.estimate.fits_on if all(name in one for one in fits_on)
        ],
        "timings_ms": tracing.timings_ms(total),
    }
    return answer._replace(estimate=answer.estimate.model_copy(update=update))


class _Stopwatch:
    """How long it took to get timelines, apart from what was done with them."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def time(self, recorded: Iterable[tuple[int, TracedJob]]) -> Iterator[tuple[int, TracedJob]]:
        """Pass on what comes, and add up how long that takes."""
        start = time.perf_counter()
        for one in recorded:
            self._seconds += time.perf_counter() - start
            yield one
            start = time.perf_counter()
        self._seconds += time.perf_counter() - start

    def timings_ms(self, total_seconds: float) -> dict[str, int]:
        """Return the keys of ``time_estimate``."""
        tracing, total = round(self._seconds * 1000), round(total_seconds * 1000)
        return {"run": tracing, "trace": tracing, "replay": total - tracing, "total": total}


def _rank(said: Estimate) -> tuple[object, int]:
    return said.decision, -said.needs_bytes


def _tell_devices(told: list[str], worst: int) -> Reason:
    return Reason(
        code="SEVERAL_DEVICES",
        message=f"{'; '.join(told)}; this is the answer for device {worst}, the worst of them",
    )
