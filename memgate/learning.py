"""Outcomes of finished jobs -> how large the CUDA context of a GPU, driver and runtime is.

An outcome teaches what a process held besides its allocator's segments: what was measured, less
what was predicted of the segments. From enough outcomes of enough callers and jobs follows a range.
What lies far from the others is shown and not followed, and no caller counts for more than a third.
A range may be wider than the documented one without limit, but it is narrowed only within it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import median
from typing import NamedTuple

from memgate.context import DOCUMENTED_CONTEXT, ContextRange

#: outcomes, callers and jobs that a range is learned from
MIN_OUTCOMES = 30
MIN_KEYS = 3
MIN_JOBS = 10

#: no caller counts for more than this of what is learned
_LARGEST_SHARE = 3

#: of cutting; each goes at least a third of the way
_ROUNDS = 100

#: from the median, in bytes and in median deviations: farther away is an outlier
_FAR_BYTES = 60 * 10**6
_FAR_DEVIATIONS = 6

#: beyond the lowest and highest that were seen, a share of their distance and so many bytes more
_SPARE_SHARE = 0.2
_SPARE_BYTES = 4 * 10**6

#: of the newest outcomes, so many are looked at, and this share of outliers is drift
_RECENT = 30
_DRIFTING_SHARE = 0.2


class Observation(NamedTuple):
    """What an outcome teaches."""

    #: who reported it
    key: str
    #: what ran: a job that runs again counts as the same
    job: str
    #: that a process held besides its segments, by the driver's figure
    context_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What the outcomes of a GPU, a driver and a runtime teach."""

    num_outcomes: int
    num_keys: int
    num_jobs: int
    #: too far from the others to be followed
    outliers: tuple[Observation, ...]
    #: None: too few outcomes, callers or jobs, and the range stays as it was
    context: ContextRange | None
    #: of the newest outcomes, many do not agree with what was learned, or with what is documented
    is_drifting: bool


def learn(
    observations: Sequence[Observation], documented: ContextRange = DOCUMENTED_CONTEXT
) -> Lesson:
    """Return what observations teach; the newest is the last."""
    followed, outliers = _split(observations, documented)
    return Lesson(
        num_outcomes=len(observations),
        num_keys=len({one.key for one in followed}),
        num_jobs=len({one.job for one in followed}),
        outliers=tuple(outliers),
        context=_find_range(followed, documented) if _is_enough(followed) else None,
        is_drifting=_is_drifting(observations, outliers),
    )


def _split(
    observations: Sequence[Observation], documented: ContextRange
) -> tuple[list[Observation], list[Observation]]:
    """Return what to follow, and outliers.

    While there are too few callers for any of them to be outvoted, what is documented is the
    measure, not what most of the outcomes say.
    """
    weights = _weigh(observations)
    if len({one.key for one in observations}) >= MIN_KEYS:
        centre = _weighted_median(observations, weights)
        deviation = median(abs(one.context_bytes - centre) for one in observations)
        far = min(max(_FAR_BYTES, _FAR_DEVIATIONS * deviation), 2 * _FAR_BYTES)
        low, high = centre - far, centre + far
    else:
        low, high = documented.low_bytes, documented.high_bytes
    followed = [one for one in observations if low <= one.context_bytes <= high]
    return followed, [one for one in observations if not low <= one.context_bytes <= high]


def _weigh(observations: Sequence[Observation]) -> dict[str, float]:
    """Return how much each outcome of a key counts, so that no key has more than a third of all.

    Cutting the largest makes all less, and a third of it: so it is cut again until nothing is left
    to cut. With fewer than three keys nothing is left at all, and all count the same.
    """
    numbers = Counter(one.key for one in observations)
    most = float(max(numbers.values(), default=0))
    if len(numbers) < MIN_KEYS:
        return dict.fromkeys(numbers, 1.0)
    for _ in range(_ROUNDS):
        third = sum(min(number, most) for number in numbers.values()) / _LARGEST_SHARE
        most = min(most, third)
    return {key: min(1.0, most / number) for key, number in numbers.items()}


def _weighted_median(observations: Sequence[Observation], weights: dict[str, float]) -> int:
    ordered = sorted(observations, key=lambda one: one.context_bytes)
    so_far = [*accumulate(weights[one.key] for one in ordered)]
    return ordered[bisect_left(so_far, so_far[-1] / 2)].context_bytes


def _is_enough(followed: Sequence[Observation]) -> bool:
    return (
        len(followed) >= MIN_OUTCOMES
        and len({one.key for one in followed}) >= MIN_KEYS
        and len({one.job for one in followed}) >= MIN_JOBS
    )


def _find_range(followed: Sequence[Observation], documented: ContextRange) -> ContextRange:
    sizes = [one.context_bytes for one in followed]
    spare = round(_SPARE_SHARE * (max(sizes) - min(sizes))) + _SPARE_BYTES
    low = max(0, min(min(sizes) - spare, documented.high_bytes))
    high = max(max(sizes) + spare, documented.low_bytes)
    usual = min(max(round(median(sizes)), low), high)
    return ContextRange(low, usual, high, f"{len(followed)} outcomes")


def _is_drifting(observations: Sequence[Observation], outliers: Sequence[Observation]) -> bool:
    recent = observations[-_RECENT:]
    far = set(outliers)
    return len(observations) >= MIN_JOBS and (
        sum(one in far for one in recent) > _DRIFTING_SHARE * len(recent)
    )
