"""Outcomes -> whether the bound holds what it promises, and what was saved. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil, sqrt

from memgate.savings import memory_saved, was_right
from service.calibration import compare_outcomes
from service.schemas import AccuracyGroup
from worker.store import Outcome

#: what share of jobs must stay below the bound (docs/accuracy.md, "The bound")
PROMISED = 0.99

#: fewer say nothing about one job in a hundred
MIN_FOR_MARGIN = 100

#: of a normal distribution, for an interval that holds 95 times of 100
_Z = 1.96

_LEAST_CHANCE = 0.05

#: shares of jobs at which measured and predicted peaks are compared
_QUANTILES = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """How often measured peaks stayed below the bound."""

    num_outcomes: int
    num_within: int
    share: float
    #: between which shares the true one lies, 95 times of 100 (Wilson's interval)
    low: float
    high: float
    #: measured over predicted peaks: the share of jobs, and the ratio that so many stay below
    ratios: tuple[tuple[float, float], ...]
    #: what would have to be added to predictions for the promised share, None if too few are known
    margin: float | None

    @property
    def holds(self) -> bool:
        """So many beyond it are no more than chance: it would do it once in twenty times."""
        return _chance(self.num_outcomes - self.num_within, self.num_outcomes) >= _LEAST_CHANCE


def measure_coverage(outcomes: Sequence[Outcome]) -> Coverage | None:
    """Hold the bound against what was measured; None if nothing was."""
    lived = [outcome for outcome in outcomes if not outcome.ran_out]
    if not lived:
        return None
    within = sum(outcome.is_within for outcome in lived)
    low, high = _wilson(within, len(lived))
    ratios = sorted(
        outcome.measured_peak_bytes / max(1, outcome.predicted_peak_bytes) for outcome in lived
    )
    rank = ceil((len(ratios) + 1) * PROMISED)  # of split conformal prediction
    known = len(ratios) >= MIN_FOR_MARGIN and rank <= len(ratios)
    return Coverage(
        num_outcomes=len(lived),
        num_within=within,
        share=within / len(lived),
        low=low,
        high=high,
        ratios=tuple((share, ratios[int(share * (len(ratios) - 1))]) for share in _QUANTILES),
        margin=ratios[rank - 1] - 1 if known else None,
    )


def _chance(beyond: int, total: int) -> float:
    """Return how likely that many, or more, are beyond a bound that holds what it promises."""
    fewer, exactly = 0.0, PROMISED**total
    for number in range(beyond):
        fewer += exactly
        exactly *= (total - number) / (number + 1) * (1 - PROMISED) / PROMISED
    return 1 - fewer


def _wilson(successes: int, total: int) -> tuple[float, float]:
    share = successes / total
    scale = 1 + _Z * _Z / total
    middle = (share + _Z * _Z / (2 * total)) / scale
    spread = _Z * sqrt(share * (1 - share) / total + _Z * _Z / (4 * total * total)) / scale
    return max(0.0, middle - spread), min(1.0, middle + spread)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """How right we were about some jobs, and what that saved."""

    name: str
    figures: AccuracyGroup
    num_ran_out: int
    #: by the paper's measure, on average; None where decisions were not stored
    saved_bytes: int | None


def group_rows(outcomes: Sequence[Outcome], key: Callable[[Outcome], str]) -> list[GroupRow]:
    """Return a row for each group, the largest first."""
    groups: dict[str, list[Outcome]] = {}
    for outcome in outcomes:
        groups.setdefault(key(outcome), []).append(outcome)
    rows = [make_row(name, members) for name, members in groups.items()]
    return sorted(rows, key=lambda row: (-row.figures.num_outcomes, row.name))


def make_row(name: str, outcomes: Sequence[Outcome]) -> GroupRow:
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
