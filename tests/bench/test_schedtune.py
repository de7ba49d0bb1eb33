"""What trains the regressor of schedtune."""

from __future__ import annotations

from math import exp

import pytest

from memgate.estimators.schedtune_weights import WEIGHTS, WEIGHTS_WITHOUT
from tests.bench.schedtune import fit


def test_a_line_is_found() -> None:
    """Of many points on one, nearly: the ridge draws slopes towards nothing."""
    features = [[1.0, float(place), 0.0] for place in range(100)]
    peaks = [exp(3 + 0.02 * place) for place in range(100)]

    first, slope, constant = fit(features, peaks)

    assert first == pytest.approx(3, abs=0.05)
    assert slope == pytest.approx(0.02, rel=0.02)
    assert constant == 0


def test_the_shipped_weights_were_trained() -> None:
    """For every model that it was trained on there are weights without it."""
    assert len(WEIGHTS_WITHOUT) >= 10
    assert all(len(weights) == len(WEIGHTS) for weights in WEIGHTS_WITHOUT.values())
    assert any(WEIGHTS)
