"""The line about an ended job: asked, predicted, used, what would have sufficed."""

from __future__ import annotations

import json

import pytest

from memgate.units import GIB
from memgate_service.admission.slurm import usage
from memgate_service.admission.slurm.commands import SlurmError
from memgate_service.admission.slurm.records import Record
from memgate_service.admission.slurm.usage import describe_use, read_use

RECORD = Record(
    decision="admit",
    gpu="a100-40",
    needs=8 * GIB,
    capacity=39 * GIB,
    id="0123456789abcdef" * 2,
    cards="a100-40,t4",
)


def test_a_smaller_card_of_the_cluster_would_have_sufficed() -> None:
    """By what it used, which counts more than what was predicted."""
    assert describe_use(7, RECORD, 7 * GIB) == (
        "job 7: asked for a100-40 (39.00 GiB), predicted 8.00 GiB, used 7.00 GiB;"
        " t4 would have sufficed"
    )
    assert describe_use(7, RECORD, 20 * GIB).endswith("used 20.00 GiB")


def test_what_was_not_measured_is_said() -> None:
    """And never taken for nothing."""
    line = describe_use(7, RECORD, None)

    assert "used not measured; t4 would have sufficed, by the prediction" in line
    assert describe_use(7, Record(), None) == (
        "job 7: asked for a GPU, predicted nothing, used not measured"
    )


@pytest.mark.parametrize(("peak", "want"), [("7516192768", "7.00 GiB"), ("0", "not measured")])
def test_accounting_is_asked(monkeypatch: pytest.MonkeyPatch, peak: str, want: str) -> None:
    """For the job and its steps; a job that memgate did not judge is told."""
    comment = json.dumps({"memgate": {"id": RECORD.id, "gpu": "t4"}})
    rows = [
        ("7", "COMPLETED", "600", "", "gres/gpu=1", "", comment),
        ("7.0", "COMPLETED", "600", "1", "gres/gpu=1", f"gres/gpumem={peak}", ""),
    ]
    monkeypatch.setattr(usage, "run", lambda _: "\n".join("\x1f".join(row) for row in rows))

    assert f"used {want}" in read_use(7)
    with pytest.raises(SlurmError, match="job 8: accounting has no job"):
        read_use(8)
