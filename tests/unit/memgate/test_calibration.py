"""What outcomes have taught is part of every bound, and of what a question's id says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from memgate.calibration import (
    Calibration,
    GroupName,
    current_calibration,
    digest_calibration,
    find_bounds,
    use_calibration,
)
from memgate.contract import Work, WorkKind
from memgate.gpus import CATALOGUE
from memgate.schemas import OutcomeCreate, PeakOwner

LEARNED = Calibration(margins={GroupName("t4", "torch-2.14"): 0.5})


@pytest.fixture
def learned() -> Iterator[None]:
    """Use what was learned, for one test."""
    before = current_calibration()
    use_calibration(LEARNED)
    yield
    use_calibration(before)


@pytest.mark.usefixtures("learned")
def test_a_wider_margin_that_was_learned_counts_for_its_gpu_and_runtime() -> None:
    """And for no other."""
    t4 = CATALOGUE["t4"]

    learned = find_bounds(t4, runtime="torch-2.14").margin

    assert (learned.ratio, learned.group) == (0.5, "outcomes of t4")
    assert find_bounds(t4, runtime="torch-2.6").margin.ratio < 0.5
    assert find_bounds(CATALOGUE["l4"], runtime="torch-2.14").margin.ratio < 0.5


def test_another_calibration_makes_another_question() -> None:
    """An answer that was stored under the old one is not given again."""
    work = Work(kind=WorkKind.FIT, trace="0" * 64)
    before = work.id()
    assert digest_calibration() == ""
    use_calibration(LEARNED)
    try:
        assert work.id() != before
    finally:
        use_calibration(Calibration())


def test_an_outcome_says_whose_peak_it_is() -> None:
    """By its owner, or by the older field; the two must not contradict each other."""

    def whose(**more: object) -> PeakOwner:
        told = {"job": "0" * 32, "measured_peak_bytes": 1} | more
        return OutcomeCreate.model_validate(told).whose

    assert whose() is PeakOwner.PROCESS
    assert whose(is_reserved_only=True) is PeakOwner.ALLOCATOR
    assert whose(owner=PeakOwner.DEVICE) is PeakOwner.DEVICE
    with pytest.raises(ValueError, match="is_reserved_only says that"):
        whose(is_reserved_only=True, owner=PeakOwner.DEVICE)
