"""Outcomes -> whether the bound keeps its promise, and what was saved. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt

from memgate.decision import Decision
from memgate.savings import memory_saved, was_right
from memgate.schemas import AccuracyGroup
from memgate_service.http.calibration import compare_outcomes
from memgate_worker.queue.client import MeasuredOutcome

#: the share of jobs that must survive within the bound (docs/accuracy.md, "The bound"): an admitted
#: job has at least that much memory
PROMISED = 0.99

#: of a normal distribution, for an interval that holds 95 times of 100
_Z = 1.96

_LEAST_CHANCE = 0.05

#: shares of jobs at which measured and predicted peaks are compared
_QUANTILES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How often jobs did as the bound says."""

    num_admitted: int
    #: of those, how many did not run out of memory
    num_lived: int
    num_rejected: int
    #: of those, how many were run anyway and ran out of memory
    num_died: int
    #: the 95 % interval of the share of admitted jobs that survive (Wilson's)
    low: float
    high: float
    #: measured over predicted peaks: a share of jobs, and the ratio that this share stays below
    ratios: tuple[tuple[float, float], ...]

    @property
    def lived_share(self) -> float | None:
        """Admitted jobs that survived, as a share of those that were reported."""
        return self.num_lived / self.num_admitted if self.num_admitted else None

    @property
    def died_share(self) -> float | None:
        """Rejected jobs that died, as a share of those that were run anyway."""
        return self.num_died / self.num_rejected if self.num_rejected else None

    @property
    def holds(self) -> bool:
        """So many deaths may be chance: more than one time in twenty."""
        return _chance(self.num_admitted - self.num_lived, self.num_admitted) >= _LEAST_CHANCE


def measure_coverage(outcomes: Sequence[MeasuredOutcome]) -> Coverage | None:
    """Compare verdicts and peaks with what was reported; None if nothing was."""
    if not outcomes:
        return None
    admitted = [outcome for outcome in outcomes if outcome.decision is Decision.ADMIT]
    rejected = [outcome for outcome in outcomes if outcome.decision is Decision.REJECT]
    lived = sum(not outcome.ran_out for outcome in admitted)
    low, high = _wilson(lived, len(admitted))
    ratios = sorted(
        outcome.measured_peak_bytes / max(1, outcome.predicted_peak_bytes)
        for outcome in outcomes
        if not outcome.ran_out
    )
    return Coverage(
        num_admitted=len(admitted),
        num_lived=lived,
        num_rejected=len(rejected),
        num_died=sum(outcome.ran_out for outcome in rejected),
        low=low,
        high=high,
        ratios=tuple(
            (share, ratios[round(share * (len(ratios) - 1))]) for share in _QUANTILES if ratios
        ),
    )


def _chance(deaths: int, total: int) -> float:
    """Return how likely that many deaths, or more, are if the bound keeps its promise."""
    fewer, exactly = 0.0, PROMISED**total
    for number in range(deaths):
        fewer += exactly
        exactly *= (total - number) / (number + 1) * (1 - PROMISED) / PROMISED
    return 1 - fewer


def _wilson(successes: int, total: int) -> tuple[float, float]:
    if not total:
        return 0.0, 1.0
    share = successes / total
    scale = 1 + _Z * _Z / total
    middle = (share + _Z * _Z / (2 * total)) / scale
    spread = _Z * sqrt(share * (1 - share) / total + _Z * _Z / (4 * total * total)) / scale
    return max(0.0, middle - spread), min(1.0, middle + spread)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """How accurate we were about some jobs, and what that saved."""

    name: str
    figures: AccuracyGroup
    num_ran_out: int
    #: by the paper's measure, on average; None where decisions were not stored
    saved_bytes: int | None


def group_rows(
    outcomes: Sequence[MeasuredOutcome], key: Callable[[MeasuredOutcome], str]
) -> list[GroupRow]:
    """Return a row for each group, the largest first."""
    groups: dict[str, list[MeasuredOutcome]] = {}
    for outcome in outcomes:
        groups.setdefault(key(outcome), []).append(outcome)
    rows = [make_row(name, members) for name, members in groups.items()]
    return sorted(rows, key=lambda row: (-row.figures.num_outcomes, row.name))


def make_row(name: str, outcomes: Sequence[MeasuredOutcome]) -> GroupRow:
    """Sum a group up."""
    saved = [
        memory_saved(
            outcome.decision,
            capacity_bytes=outcome.capacity_bytes,
            upper_bound_bytes=outcome.upper_bound_bytes,
            is_right=was_right(
                outcome.decision, ran_out=outcome.ran_out, is_within=outcome.is_within
            ),
        )
        for outcome in outcomes
        if outcome.decision is not None and outcome.capacity_bytes is not None
    ]
    return GroupRow(
        name=name,
        figures=compare_outcomes(outcomes).all,
        num_ran_out=sum(outcome.ran_out for outcome in outcomes),
        saved_bytes=round(sum(saved) / len(saved)) if saved else None,
    )
