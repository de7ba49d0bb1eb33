"""Measured jobs that died -> by what share an estimate may be too low: split conformal prediction.

A job that ran out of memory needed more than it had, so what it had is the least that a bound must
exceed. Its score is by what share that exceeds the estimate; a job counts once, with the largest
cap at which it died. The margin is the score of such a rank that one more job like these stays
below the bound with the wanted coverage.

Jobs of one GPU and family have a margin of their own from ``MIN_SCORES`` scores of ``MIN_MODELS``
models on. With fewer, theirs is shrunk towards that of all, and never narrower.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from math import ceil
from typing import NamedTuple

#: of which a group has a margin of its own
MIN_SCORES = 99
MIN_MODELS = 5

#: of jobs that must stay below their bound, unless the operator says otherwise
DEFAULT_COVERAGE = 0.99

#: no margin is narrower. An earlier revision of the engines needed this much for the same runs: so
#: much do scores move with what is rightly changed elsewhere, and the runs that are known do not
#: show it
NARROWEST = 0.013

#: the group of all jobs
POOLED = "all GPUs and jobs"


class Family(StrEnum):
    """Jobs whose estimates err for the same reasons."""

    CONVOLUTION = "convolution"
    """cuDNN computes convolutions in it."""
    OTHER = "other"
    UNKNOWN = "unknown"
    """Nothing tells."""


class DeathScore(NamedTuple):
    """How much more than estimated a job had when it died."""

    gpu: str
    family: Family
    model: str
    #: of the estimate; below zero if it died with less
    excess: float


class Margin(NamedTuple):
    """By what share an estimate may be too low, and what that was measured on."""

    ratio: float
    #: whose scores decided
    group: str
    num_scores: int
    num_models: int


def highest_coverage(num_scores: int) -> float:
    """Return the most coverage that so many scores can vouch for."""
    return num_scores / (num_scores + 1)


def find_margin(scores: Sequence[DeathScore], gpu: str, family: Family, coverage: float) -> Margin:
    """Return the margin for jobs of a family on a GPU."""
    pooled = max(NARROWEST, _rank(scores, coverage))
    own = [one for one in scores if one.gpu == gpu and one.family is family]
    num_models = len({one.model for one in own})
    if len(own) >= MIN_SCORES and num_models >= MIN_MODELS:
        ratio = max(NARROWEST, _rank(own, coverage))
        return Margin(ratio, f"{family} on {gpu}", len(own), num_models)
    if own:
        weight = len(own) / (len(own) + MIN_SCORES)
        shrunk = pooled + weight * (max(one.excess for one in own) - pooled)
        if shrunk > pooled:
            group = f"{family} on {gpu}, shrunk towards {POOLED}"
            return Margin(shrunk, group, len(own), num_models)
    return Margin(pooled, POOLED, len(scores), len({one.model for one in scores}))


def _rank(scores: Iterable[DeathScore], coverage: float) -> float:
    """Return the score that one more stays below with this probability, or the largest."""
    excess = sorted(max(0.0, one.excess) for one in scores)
    if not excess:
        return NARROWEST
    # a product such as 0.99 * 100 may be a little more than the number that is meant
    rank = ceil(round(coverage * (len(excess) + 1), 9))
    return excess[min(rank, len(excess)) - 1]
