"""The record of a decision: small, whatever users write."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from memgate.audit import AuditBatch, AuditEntry


def test_a_record_is_under_a_kilobyte() -> None:
    """Long texts are cut, control characters are not kept, and only the first groups are."""
    names = set(AuditEntry.model_fields) - {"id", "at", "gate", "done", "num_gpus", "ms", "groups"}
    entry = AuditEntry.model_validate(
        dict.fromkeys(names, "x\n" * 5000)
        | {"id": "a" * 32, "at": 1.7e9, "gate": "kubernetes", "done": "refused"}
        | {"groups": [f"system:group-{number}" for number in range(100)], "num_gpus": 8, "ms": 1}
    )

    assert entry.user == "x " * 32
    assert len(entry.groups) == 6
    assert len(entry.text().encode()) < 1024
    short = AuditEntry(id="a" * 16, at=1, gate="slurm", done="admitted", user="ada", why="words")
    assert AuditEntry.model_validate_json(short.text()) == short


def test_a_cell_is_never_a_formula() -> None:
    """Names are users' own, and a table is opened by administrators."""
    entry = AuditEntry(
        id="a" * 16, at=1, gate="slurm", done="admitted", name="=1+1", groups=["a", "b"]
    )

    cells = entry.cells()
    assert (cells["name"], cells["groups"], cells["at"]) == ("'=1+1", "a b", 1.0)


@pytest.mark.parametrize("wrong", [{"user": 7}, {"groups": "wheel"}, {"id": "a b"}, {"done": "no"}])
def test_a_wrong_record_is_refused(wrong: dict[str, object]) -> None:
    """What a gate sends is checked like everything else."""
    right = {"id": "a" * 16, "at": 1, "gate": "slurm", "done": "admitted"}
    assert AuditBatch.model_validate({"entries": [right]}).entries[0].id == "a" * 16
    with pytest.raises(ValidationError):
        AuditEntry.model_validate(right | wrong)
