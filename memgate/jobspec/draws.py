"""A seed -> lengths of batches that follow a distribution; the same seed, the same lengths.

A batch is padded to its longest sample, so what is drawn is the largest of many numbers. That can
be drawn directly: the largest of n even shares is the n-th root of one. No sample is made, so a
batch of a million costs what a batch of one does, and with a larger batch no length gets smaller.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import exp, log
from statistics import NormalDist

_MASK = (1 << 64) - 1
_STANDARD = NormalDist()


class Shares:
    """Even numbers between 0 and 1, without either: SplitMix64 (Steele, Lea and Flood, 2014)."""

    def __init__(self, seed: int) -> None:
        self._state = seed & _MASK

    def __next__(self) -> float:
        """Return the next one."""
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return (((mixed ^ (mixed >> 31)) >> 11) + 0.5) / (1 << 53)


def draw_largest(num_batches: int, batch_size: int, seed: int, bucket: int = 1) -> list[float]:
    """Return the largest share of each batch.

    With a ``bucket``, the samples of so many batches are sorted, large to small, before they are
    dealt out.
    """
    shares = Shares(seed)
    found: list[float] = []
    while len(found) < num_batches:
        num_left = min(bucket, num_batches - len(found))
        found += _draw_sorted(shares, num_left, batch_size)
    return found


def _draw_sorted(shares: Shares, num_batches: int, batch_size: int) -> Iterator[float]:
    """Yield the first, and then every ``batch_size``-th, of sorted shares, largest first.

    Each is that before it times a root, of as many as are left: the largest of those below.
    """
    num_samples = num_batches * batch_size
    share = 1.0
    for at in range((num_batches - 1) * batch_size + 1):
        share *= next(shares) ** (1 / (num_samples - at))
        if at % batch_size == 0:
            yield share


def normal(share: float, mean: float, deviation: float) -> float:
    """Return what a share of normally distributed numbers is below."""
    return mean + deviation * _STANDARD.inv_cdf(_inside(share))


def lognormal(share: float, mean: float, deviation: float) -> float:
    """Return the same of numbers whose logarithms are so distributed; mean and deviation are not
    those of the logarithms.
    """
    variance = log(1 + (deviation / mean) ** 2)
    return exp(log(mean) - variance / 2 + variance**0.5 * _STANDARD.inv_cdf(_inside(share)))


def _inside(share: float) -> float:
    """Keep a share that was rounded to 1 below it."""
    return min(share, 1 - 2**-53)


def interpolate(share: float, points: list[tuple[float, int]]) -> float:
    """Return the value at a share, on the line through the points around it; they are sorted."""
    for (low, small), (high, large) in pairwise(points):
        if share <= high:
            return small + (large - small) * (share - low) / (high - low)
    return points[-1][1]
