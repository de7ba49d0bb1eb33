"""What each rule changes."""

from __future__ import annotations

import pytest

from memgate.accuracy import Prediction, read_measured_runs
from memgate.rules import RULES
from tests.bench.rules import ALL, find_effects


def test_a_rule_is_measured_by_what_is_wrong_without_it() -> None:
    """Rows whose prediction changes are counted; the rest is that of all rules."""
    row = {
        "run": "r1",
        "model": "VGG16",
        "optimizer": "Adam",
        "batch_size": "8",
        "zero_grad_mode": "0",
        "gpu": "A",
        "total_gpu_memory": "1000",
        "ground_bytes": "100",
        "real_oom": "false",
    }
    runs = read_measured_runs([row], [], {"VGG16": {"source": "torchvision", "name": "vgg16"}})
    same = Prediction(bytes=101, runs_out=False, seconds=0.0, capped=())
    worse = Prediction(bytes=150, runs_out=False, seconds=0.0, capped=())
    said = {ALL: same} | {rule.__name__: same for rule in RULES} | {"dropout_masks": worse}

    effects = {effect.without: effect for effect in find_effects(runs, [said])}

    assert effects[ALL].median_error == pytest.approx(0.01)
    assert effects["dropout_masks"].median_error == pytest.approx(0.5)
    assert [name for name, effect in effects.items() if effect.num_changed] == ["dropout_masks"]
