"""``MEMGATE_COVERAGE``: the operator's share of jobs that must stay below their bound."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from memgate.calibration import (
    Calibration,
    current_calibration,
    digest_calibration,
    find_bounds,
    use_calibration,
)
from memgate.gpus import find_gpu
from memgate_worker.coverage import CoverageError, load_coverage


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    yield
    use_calibration(Calibration())


def test_what_is_wanted_is_what_an_answer_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """And answers with another coverage have another digest."""
    assert digest_calibration() == ""
    monkeypatch.setenv("MEMGATE_COVERAGE", "0.95")
    load_coverage()
    assert find_bounds(find_gpu("rtx-3060")).coverage == 0.95
    assert digest_calibration()


@pytest.mark.parametrize("said", ["0.999", "99", "0.2", "nan", "most"])
def test_no_more_than_the_runs_can_vouch_for(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the value, the rule and the highest."""
    monkeypatch.setenv("MEMGATE_COVERAGE", said)
    with pytest.raises(CoverageError, match=rf"MEMGATE_COVERAGE is '{said}'.*0\.9923"):
        load_coverage()
    assert current_calibration() == Calibration()
