"""The bench that holds extrapolated runs against real ones; runs are in the integration tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from memgate.errors import InputError
from memgate.extrapolation import RunComparison
from tests.bench.extrapolation import Agreement, read_models
from tests.conftest import DATA


def test_models_are_read_by_name() -> None:
    """As ``memgate accuracy`` reads them."""
    assert read_models(DATA / "models.json")["MobileNetV2"]["name"] == "mobilenet_v2"


@pytest.mark.parametrize(
    ("text", "want_message"),
    [(None, "make extrapolation MODELS=path"), ("{", "MODELS=path"), ("[]", "not an object")],
    ids=["no file", "no JSON", "no object"],
)
def test_a_wrong_file_is_told(tmp_path: Path, text: str | None, want_message: str) -> None:
    """With what to do."""
    path = tmp_path / "models.json"
    if text is not None:
        path.write_text(text)

    with pytest.raises(InputError) as raised:
        read_models(path)

    assert want_message in raised.value.message


def test_a_difference_is_told_by_kind() -> None:
    """Events that differ count even if no block does."""
    blocks = RunComparison(
        num_calls=9, num_blocks=8, other_calls=0, other_sizes=0, other_lifetimes=0
    )

    same = Agreement(batch_size=4, blocks=blocks, num_events=20, other_events=0)
    other = Agreement(batch_size=4, blocks=blocks, num_events=20, other_events=3)

    assert (str(same), same.is_complete) == ("all", True)
    assert str(other) == "not 0 calls, 0 sizes, 0 lifetimes, 3 events"
