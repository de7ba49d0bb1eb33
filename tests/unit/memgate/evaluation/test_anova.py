"""The analysis of variance, on a textbook's numbers."""

from __future__ import annotations

import pytest

from memgate.evaluation.anova import analyze_variance, exceed_f


def test_three_groups_worked_out_by_hand() -> None:
    """Means 2, 3 and 6: 26 between the groups, 6 within, so F is 13 and p is (16/3)^-3."""
    found = analyze_variance([1, 2, 3, 2, 3, 4, 5, 6, 7], {"group": [*"aaabbbccc"]})

    assert found is not None
    (effect,) = found.effects
    assert (effect.degrees, found.rest_degrees, found.rows) == (2, 6, 9)
    assert effect.sum_of_squares == pytest.approx(26)
    assert found.rest_sum_of_squares == pytest.approx(6)
    assert effect.f_value == pytest.approx(13)
    assert effect.p_value == pytest.approx((16 / 3) ** -3)
    assert effect.share == pytest.approx(26 / 32)


def test_a_factor_counts_for_what_others_do_not_explain() -> None:
    """Two factors that always change together explain nothing beside each other."""
    values = [1.0, 1.5, 5.0, 5.5, 1.2, 5.2]
    model = [*"aabbab"]

    found = analyze_variance(values, {"model": model, "twin": model, "coin": [*"xyxyyx"]})

    assert found is not None
    assert [effect.factor for effect in found.effects] == ["coin"]


@pytest.mark.parametrize(
    ("values", "levels"),
    [
        pytest.param([1.0, 2.0], [*"ab"], id="as many levels as values"),
        pytest.param([1.0, 1.0, 2.0, 2.0], [*"aabb"], id="nothing left to compare with"),
    ],
)
def test_what_cannot_be_told_apart_is_not(values: list[float], levels: list[str]) -> None:
    """No F exists without something unexplained."""
    assert analyze_variance(values, {"group": levels}) is None


@pytest.mark.parametrize(
    ("value", "degrees", "rest", "want"),
    [
        pytest.param(4.9646, 1, 10, 0.05, id="of the tables, 1 and 10"),
        pytest.param(3.0984, 3, 20, 0.05, id="of the tables, 3 and 20"),
        pytest.param(5.8489, 2, 20, 0.01, id="of the tables, 2 and 20"),
        pytest.param(0.0, 3, 20, 1.0, id="nothing is always exceeded"),
        pytest.param(float("inf"), 3, 20, 0.0, id="infinity never is"),
        pytest.param(0.1, 2, 20, 1.01**-10, id="the other side of the fraction"),
    ],
)
def test_probabilities_are_those_of_the_tables(
    value: float, degrees: int, rest: int, want: float
) -> None:
    """Fisher's F distribution."""
    assert exceed_f(value, degrees, rest) == pytest.approx(want, abs=1e-4)
