"""Measured runs and their bounds -> does the bound hold for models that it was not made from?

Every model is left out in turn: its jobs are judged with the margin that the scores of the others
give. A job that died is covered if it had less than its bound, at the highest cap at which it died
(by job) and at each (by death). Deaths far below the bound prove nothing, so those near it are
counted, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil, comb
from statistics import median
from typing import Any, NamedTuple

from memgate.margins import DeathScore, Family, find_margin
from memgate.workspaces import WorkspaceRange

#: of the bound: a death as near as this could have been missed
_NEAR = 0.1

#: of intervals
_CONFIDENCE = 0.95


class BoundedRun(NamedTuple):
    """A measured job and what was estimated for it, without the CUDA context."""

    gpu: str
    model: str
    family: Family
    #: the smallest cap in which it is estimated to live
    required_bytes: int
    workspaces: WorkspaceRange
    #: that libraries take besides the allocator
    library_bytes: int
    #: None if it ran out of memory
    measured_bytes: int | None
    died_at: tuple[int, ...]
    lived_at: tuple[int, ...]

    @property
    def most_bytes(self) -> int:
        """What it is estimated to need with the worst workspaces."""
        return self.required_bytes + self.workspaces.more_bytes

    @property
    def score(self) -> DeathScore | None:
        """What it says about margins; None if it did not die."""
        if not self.died_at:
            return None
        excess = max(self.died_at) / self.most_bytes - 1
        return DeathScore(self.gpu, self.family, self.model, excess)


def measure_bound(runs: Sequence[BoundedRun], coverage: float) -> dict[str, Any]:
    """Return the figures, as JSON has them."""
    bounded = list(_leave_models_out(runs, coverage))
    by_job = [max(run.died_at) < bound for run, bound in bounded if run.died_at]
    deaths = [(cap, bound) for run, bound in bounded for cap in run.died_at]
    excess = sorted(
        (bound + run.library_bytes) / run.measured_bytes - 1
        for run, bound in bounded
        if run.measured_bytes
    )
    return {
        "coverage": coverage,
        "by_job": _coverage(by_job),
        "by_death": _coverage([cap < bound for cap, bound in deaths]),
        "deaths_within_10_percent": sum(abs(cap / bound - 1) <= _NEAR for cap, bound in deaths),
        "above_measured_median": median(excess) if excess else None,
        "above_measured_p90": excess[ceil(0.9 * len(excess)) - 1] if excess else None,
        "scores": [score for run in runs if (score := run.score)],
    }


def _leave_models_out(
    runs: Sequence[BoundedRun], coverage: float
) -> Iterator[tuple[BoundedRun, float]]:
    scores = [score for run in runs if (score := run.score)]
    for run in runs:
        others = [score for score in scores if score.model != run.model]
        margin = find_margin(others, run.gpu, run.family, coverage)
        yield run, run.most_bytes * (1 + margin.ratio)


def _coverage(covered: Sequence[bool]) -> dict[str, Any]:
    low, high = binomial_interval(sum(covered), len(covered))
    return {
        "covered": sum(covered),
        "of": len(covered),
        "share": sum(covered) / len(covered) if covered else None,
        "interval_95": [low, high],
    }


def describe_bound(figures: dict[str, Any]) -> str:
    """Say it in a few lines."""
    lines = [f"the bound, for {figures['coverage']:.1%} of jobs, with each model left out in turn:"]
    for key, what in (("by_job", "jobs that died"), ("by_death", "deaths")):
        one = figures[key]
        if not one["of"]:
            continue
        low, high = one["interval_95"]
        lines.append(
            f"  {one['covered']} of {one['of']} {what} lie below it: {one['share']:.1%}"
            f" (exact 95 % interval {low:.1%} to {high:.1%})"
        )
    lines.append(f"  {figures['deaths_within_10_percent']} deaths within 10 % of it")
    if figures["above_measured_median"] is not None:
        lines.append(
            f"  above what was measured of runs that lived: {figures['above_measured_median']:+.1%}"
            f" in the median, {figures['above_measured_p90']:+.1%} at p90"
        )
    return "\n".join(lines)


def binomial_interval(successes: int, trials: int) -> tuple[float, float]:
    """Return the exact interval (Clopper and Pearson) of a share with 95 % confidence."""
    tail = (1 - _CONFIDENCE) / 2
    low = 0.0 if successes == 0 else _solve(trials, trials - successes, tail, mirrored=True)
    high = 1.0 if successes == trials else _solve(trials, successes, tail, mirrored=False)
    return low, high


def _solve(trials: int, successes: int, tail: float, *, mirrored: bool) -> float:
    """Return the share at which so few successes are just as unlikely as ``tail``."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _at_most(successes, trials, middle) > tail:
            low = middle
        else:
            high = middle
    return 1 - low if mirrored else low


def _at_most(successes: int, trials: int, share: float) -> float:
    return sum(
        comb(trials, k) * share**k * (1 - share) ** (trials - k) for k in range(successes + 1)
    )
