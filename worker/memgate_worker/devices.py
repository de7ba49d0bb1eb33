"""What was recorded of each device of a job -> the answer for the worst of them.

Each device is answered for, on a GPU of its own of the kind that was asked about. The worst answer
counts, and says what the others are.
"""

from __future__ import annotations

from collections.abc import Mapping

from memgate.explanation import name_verdict
from memgate.gpus import GpuTarget
from memgate.report import Reason
from memgate.units import format_size
from memgate_worker.engines.traced import TracedJob
from memgate_worker.timings import TimedEstimate, time_estimate


def estimate_devices(
    traced: Mapping[int, TracedJob], target: GpuTarget, *, is_least: bool
) -> TimedEstimate:
    """Answer for each device, by its number, and return the worst answer.

    ``is_least``: with doubts, what is known is the least that the job takes, wherever it runs.
    """
    answers = {number: _estimate(one, target) for number, one in traced.items()}
    worst = min(answers, key=lambda number: _rank(answers[number]))
    answer = answers[worst]
    reasons = list(answer.estimate.reasons)
    if len(answers) > 1:
        reasons.append(_tell_devices(answers, worst))
    fits_on = [
        name
        for name in answer.estimate.fits_on
        if all(name in other.estimate.fits_on for other in answers.values())
    ]
    if is_least and any(one.doubts for one in traced.values()):  # elsewhere they are the same
        fits_on = []
    update = {"reasons": reasons, "fits_on": fits_on}
    return answer._replace(estimate=answer.estimate.model_copy(update=update))


def _rank(answer: TimedEstimate) -> tuple[object, int]:
    return answer.estimate.decision, -answer.estimate.needs_bytes


def _estimate(traced: TracedJob, target: GpuTarget) -> TimedEstimate:
    timed = time_estimate(lambda: traced, target)
    took = timed.estimate.timings_ms
    read = round(traced.seconds * 1000)
    timings = took | {"trace": read, "total": read + took["replay"]}
    return timed._replace(estimate=timed.estimate.model_copy(update={"timings_ms": timings}))


def _tell_devices(answers: Mapping[int, TimedEstimate], worst: int) -> Reason:
    told = "; ".join(
        f"device {number} {name_verdict(answer.estimate.decision, answer.estimate.gpu)},"
        f" needs {format_size(answer.estimate.needs_bytes)}"
        for number, answer in answers.items()
    )
    return Reason(
        code="SEVERAL_DEVICES",
        message=f"{told}; this is the answer for device {worst}, the worst of them",
    )
