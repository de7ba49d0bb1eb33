"""Outcomes -> how accurate we were, overall, by GPU and by model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median

from memgate.decision import Decision
from memgate.learning import Observation, learn
from memgate.schemas import AccuracyGroup, AccuracyRead, LessonRead
from memgate_worker.queue.client import MeasuredOutcome, QueueClient

#: jobs whose outcomes are shown as outliers
_SHOWN_OUTLIERS = 20


def compare_outcomes(outcomes: Sequence[MeasuredOutcome]) -> AccuracyRead:
    """Make the figures; jobs that ran out of memory say nothing about their peak."""
    return AccuracyRead(
        all=_group(outcomes),
        by_gpu=_groups(outcomes, lambda outcome: outcome.gpu),
        by_model=_groups(outcomes, lambda outcome: outcome.model),
        lessons=list(_find_lessons(outcomes)),
    )


def _find_lessons(outcomes: Sequence[MeasuredOutcome]) -> Iterator[LessonRead]:
    """Return what outcomes teach about each GPU, driver and runtime; the newest come first."""
    groups: dict[tuple[str, str, str], list[Observation]] = {}
    for one in reversed(outcomes):
        if one.context_bytes is not None:
            group = groups.setdefault((one.gpu, one.driver, one.runtime), [])
            group.append(Observation(one.key, one.job, one.context_bytes))
    for (gpu, driver, runtime), observations in sorted(groups.items()):
        lesson = learn(observations)
        context = lesson.context
        yield LessonRead(
            gpu=gpu,
            driver=driver,
            runtime=runtime,
            num_outcomes=lesson.num_outcomes,
            num_outliers=len(lesson.outliers),
            outliers=[one.job for one in lesson.outliers[-_SHOWN_OUTLIERS:]],
            num_keys=lesson.num_keys,
            num_jobs=lesson.num_jobs,
            context=None
            if context is None
            else {
                "low_bytes": context.low_bytes,
                "usual_bytes": context.usual_bytes,
                "high_bytes": context.high_bytes,
            },
            is_drifting=lesson.is_drifting,
        )


def count_outcome(queue: QueueClient, outcome: MeasuredOutcome, decision: Decision) -> None:
    """Count an outcome for Prometheus; admitted jobs that ran out of memory are what hurts."""
    if outcome.ran_out:
        queue.count("outcomes", f"{decision}:ran_out")
        return
    queue.count("outcomes", f"{decision}:{'within' if outcome.is_within else 'beyond'}")
    queue.count("error_ratio", decision, _relative_error(outcome))
    queue.count("error_count", decision)


def _relative_error(outcome: MeasuredOutcome) -> float:
    off_by = abs(outcome.predicted_peak_bytes - outcome.measured_peak_bytes)
    return off_by / outcome.measured_peak_bytes


def _groups(
    outcomes: Sequence[MeasuredOutcome], key: Callable[[MeasuredOutcome], str]
) -> dict[str, AccuracyGroup]:
    names = sorted({key(outcome) for outcome in outcomes})
    return {
        name: _group([outcome for outcome in outcomes if key(outcome) == name]) for name in names
    }


def _group(outcomes: Sequence[MeasuredOutcome]) -> AccuracyGroup:
    lived = [outcome for outcome in outcomes if not outcome.ran_out]
    errors = [_relative_error(outcome) for outcome in lived]
    within = [outcome.is_within for outcome in lived]
    return AccuracyGroup(
        num_outcomes=len(outcomes),
        median_relative_error=median(errors) if errors else None,
        share_beyond_10_percent=_share([error > 0.1 for error in errors]),
        share_within_bound=_share(within),
    )


def _share(outcomes: Sequence[bool]) -> float | None:
    return sum(outcomes) / len(outcomes) if outcomes else None
