"""Values with factors -> how much of their variance each factor explains (analysis of variance).

The design is not balanced, so each factor is tested against a model of all the others (type II, no
interactions): by how much the sum of squares that is left grows without it. Probabilities are those
of Fisher's F distribution; nothing here needs numpy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, lgamma, log

_NOTHING = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What one factor explains beside the others."""

    factor: str
    degrees: int
    sum_of_squares: float
    #: of what the factor and the rest leave to explain (partial eta squared)
    share: float
    f_value: float
    p_value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Anova:
    """The effects, and what no factor explains."""

    rows: int
    effects: tuple[Effect, ...]
    rest_degrees: int
    rest_sum_of_squares: float


def analyze_variance(values: Sequence[float], factors: Mapping[str, Sequence[str]]) -> Anova | None:
    """Return the effect of each factor; None if there are too few values to tell them apart.

    Args:
        values: such as errors.
        factors: by name, the level of each value.
    """
    whole = _fit(values, [*factors.values()])
    if whole.degrees <= 0 or whole.sum_of_squares <= _NOTHING * sum(v * v for v in values):
        return None
    effects = []
    for name in factors:
        others = [levels for other, levels in factors.items() if other != name]
        without = _fit(values, others)
        degrees = without.degrees - whole.degrees
        gained = max(0.0, without.sum_of_squares - whole.sum_of_squares)
        if degrees:
            effects.append(_effect(name, degrees, gained, whole))
    return Anova(
        rows=len(values),
        effects=tuple(effects),
        rest_degrees=whole.degrees,
        rest_sum_of_squares=whole.sum_of_squares,
    )


@dataclass(frozen=True, slots=True)
class _Rest:
    """What a model leaves."""

    degrees: int
    sum_of_squares: float


def _effect(name: str, degrees: int, gained: float, whole: _Rest) -> Effect:
    f_value = gained / degrees / (whole.sum_of_squares / whole.degrees)
    return Effect(
        factor=name,
        degrees=degrees,
        sum_of_squares=gained,
        share=gained / (gained + whole.sum_of_squares),
        f_value=f_value,
        p_value=exceed_f(f_value, degrees, whole.degrees),
    )


def _fit(values: Sequence[float], factors: Sequence[Sequence[str]]) -> _Rest:
    """Remove from the values what a constant and the levels of factors explain."""
    columns = [[1.0] * len(values)]
    for levels in factors:
        known = sorted(set(levels))
        columns += [[float(one == level) for one in levels] for level in known]
    basis: list[list[float]] = []
    for column in columns:
        size = _product(column, column)
        left = column
        for direction in [*basis, *basis]:  # twice: once loses digits
            left = _remove(left, direction)
        length = _product(left, left)
        if length > _NOTHING * size:  # otherwise the others say it already
            basis.append([one / length**0.5 for one in left])
    rest = [*values]
    for direction in basis:
        rest = _remove(rest, direction)
    return _Rest(len(values) - len(basis), _product(rest, rest))


def _remove(column: Sequence[float], direction: Sequence[float]) -> list[float]:
    part = _product(column, direction)
    return [one - part * other for one, other in zip(column, direction, strict=True)]


def _product(one: Sequence[float], other: Sequence[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def exceed_f(value: float, degrees: int, rest_degrees: int) -> float:
    """Return the probability that F is at least this, if the factor explains nothing."""
    x = rest_degrees / (rest_degrees + degrees * value)
    return _incomplete_beta(rest_degrees / 2, degrees / 2, x)


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Return the regularised incomplete beta function, by its continued fraction."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast on the other side only
        return 1 - _incomplete_beta(b, a, 1 - x)
    front = exp(lgamma(a + b) - lgamma(a) - lgamma(b) + a * log(x) + b * log(1 - x)) / a
    fraction = 1.0
    for step in range(200, 0, -1):  # from the inside out
        half = step // 2
        if step % 2:
            term = -(a + half) * (a + b + half) * x / ((a + 2 * half) * (a + 2 * half + 1))
        else:
            term = half * (b - half) * x / ((a + 2 * half - 1) * (a + 2 * half))
        fraction = 1 + term / fraction
    return front / fraction
