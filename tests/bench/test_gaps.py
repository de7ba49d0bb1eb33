"""What a row of the breadth bench tells, by rules that are the same for all models."""

from __future__ import annotations

import pytest

from memgate.units import GIB
from tests.bench.gaps import Gaps, Kind, Row, percentile, sort_out

CONSTANT = 2 * GIB


def _row(
    measured: float,
    reserved: float,
    *,
    siblings: dict[int, float] | None = None,
    weights: float = 0.0,
    runs_out: bool = False,
) -> Row:
    others = {batch: int(figure * GIB) for batch, figure in (siblings or {}).items()}
    return Row(
        model="m",
        batch_size=64,
        measured_bytes=int(measured * GIB),
        siblings=others | {64: int(measured * GIB)},
        reserved_bytes=int(reserved * GIB),
        runs_out=runs_out,
        weights_bytes=int(weights * GIB),
    )


#: rows whose gap is the constant, so that it comes out
PLAIN = [_row(2.0 + size, size) for size in (1, 5, 9, 10, 20)]


def _kind_beside_plain_rows(row: Row) -> Kind:
    gaps = sort_out([*PLAIN, row])
    assert gaps.constant_bytes == CONSTANT
    return gaps.kinds[-1][1]


def test_the_constant_is_the_median_gap() -> None:
    """Rows with workspaces do not move it, and plain rows are left without a residual."""
    gaps = sort_out([*PLAIN, _row(30, 5)])

    assert gaps.constant_bytes == CONSTANT
    assert gaps.residuals(Kind.LIVED) == [0.0] * 5
    assert gaps.residuals(Kind.LIVED, batch_size=8) == []
    assert gaps.gaps(Kind.LIVED) == [CONSTANT] * 5
    assert gaps.residuals(Kind.WORKSPACES) == [pytest.approx(23 / 30)]


@pytest.mark.parametrize(
    ("row", "want"),
    [
        (_row(10.5, 8), Kind.LIVED),
        (_row(9.5, 8), Kind.LIVED),
        (_row(20, 8), Kind.WORKSPACES),
        (_row(39, 38, runs_out=True), Kind.DIED_BEYOND_CARD),
        (_row(4, 8, weights=1), Kind.DIED_NO_STEP),
        (_row(6, 8, siblings={8: 6}, weights=1), Kind.DIED_NO_GROWTH),
        (_row(6, 8, siblings={8: 7}), Kind.DIED_NO_GROWTH),
        (_row(6, 8, siblings={128: 7}), Kind.UNEXPLAINED),
        (_row(6, 8), Kind.UNEXPLAINED),
        (_row(10, 8, siblings={8: 30}), Kind.LIVED),
        (_row(20, 8, siblings={8: 20}), Kind.WORKSPACES),
    ],
    ids=[
        "a little above",
        "a little below",
        "far above",
        "predicted to run out",
        "smaller than its weights, gradients and momentum",
        "the same at another batch size",
        "below a smaller batch size",
        "below a larger batch size only",
        "no other batch size",
        "as predicted, below a smaller batch with workspaces",
        "far above, the same at another batch size",
    ],
)
def test_what_a_row_tells(row: Row, want: Kind) -> None:
    """A death needs a sign beside a bad prediction; without one the row is unexplained."""
    assert _kind_beside_plain_rows(row) is want
    assert want.is_death == want.name.startswith("DIED")


def test_rows_that_all_look_dead_still_have_a_median() -> None:
    """There is a constant, however bad."""
    gaps: Gaps = sort_out([_row(4, 3, siblings={8: 4})])

    assert gaps.constant_bytes == GIB


def test_a_percentile_is_one_of_the_values() -> None:
    """The one that this share does not exceed."""
    assert percentile([1, 2, 3, 4], 0.5) == 2
    assert percentile([1, 2, 3, 4], 0.9) == 4
    assert percentile([1], 0.05) == 1
