"""What was counted by the minute -> the figures of the overview. Pure: the clock is an argument."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from memgate.errors import Fault
from memgate_worker.queue.client import JobOutcome, step_seconds

#: minute since the epoch -> what was counted in it
Minutes = Mapping[int, Mapping[str, int]]

#: decisions as the chart stacks them, from the bottom up; above them jobs without an answer
CHARTED = (JobOutcome.ADMIT, JobOutcome.UNCERTAIN, JobOutcome.REJECT)


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTimes:
    """How long callers waited for answers of an engine."""

    engine: str
    num_jobs: int
    median_seconds: float
    p95_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Sums over some minutes."""

    outcomes: Mapping[str, int]
    saved_bytes: int
    #: where answers were found: in memory, in the store, nowhere
    cache: Mapping[str, int]
    #: runs that already existed, or had to be made
    runs: Mapping[str, int]
    engines: tuple[EngineTimes, ...]

    @property
    def num_verdicts(self) -> int:
        """Estimates that were answered."""
        return sum(self.outcomes.get(name, 0) for name in CHARTED)

    @property
    def saved_mean_bytes(self) -> int | None:
        """Saved per verdict on average: the figure that the paper gives."""
        return round(self.saved_bytes / self.num_verdicts) if self.num_verdicts else None

    @property
    def hit_share(self) -> float | None:
        """Questions whose answer was already known, as a share of all."""
        asked = sum(self.cache.values())
        return 1 - self.cache.get("nowhere", 0) / asked if asked else None

    def share(self, outcome: str) -> float | None:
        """Return the share of verdicts that are this one."""
        return self.outcomes.get(outcome, 0) / self.num_verdicts if self.num_verdicts else None


def sum_up(minutes: Iterable[Mapping[str, int]]) -> Figures:
    """Add minutes up."""
    total: Counter[str] = Counter()
    for counts in minutes:
        for name, count in counts.items():
            total[name] += count
    times: dict[str, Counter[int]] = {}
    parts: dict[str, dict[str, int]] = {"outcome": {}, "cache": {}, "runs": {}}
    for name, count in total.items():
        kind, _, rest = name.partition(":")
        if kind == "time":
            engine, _, step = rest.rpartition(":")
            times.setdefault(engine, Counter())[int(step)] += count
        elif kind in parts:
            parts[kind][rest] = count
    return Figures(
        outcomes=parts["outcome"],
        saved_bytes=total["saved_bytes"],
        cache=parts["cache"],
        runs=parts["runs"],
        engines=tuple(_times(engine, steps) for engine, steps in sorted(times.items())),
    )


def _times(engine: str, steps: Counter[int]) -> EngineTimes:
    return EngineTimes(
        engine=engine,
        num_jobs=steps.total(),
        median_seconds=_quantile(steps, 0.5),
        p95_seconds=_quantile(steps, 0.95),
    )


def _quantile(steps: Counter[int], share: float) -> float:
    """Return the time within which a share of the jobs was answered."""
    left = share * steps.total()
    for step in sorted(steps):
        left -= steps[step]
        if left <= 0:
            break
    return step_seconds(step)


def chart_rows(minutes: Minutes) -> list[list[int]]:
    """Return a row for each minute in which a job ended: the minute, each outcome, no answer."""
    rows = []
    for minute, counts in sorted(minutes.items()):
        of_kind = [counts.get(f"outcome:{name}", 0) for name in CHARTED]
        of_kind.append(sum(counts.get(f"outcome:{fault}", 0) for fault in Fault))
        if any(of_kind):
            rows.append([minute, *of_kind])
    return rows
