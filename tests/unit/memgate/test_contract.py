"""What service and worker say to each other."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from memgate.contract import JobRecord, Work, WorkKind
from memgate.errors import InputError, UnknownGpuError
from memgate.gpus import GpuRequest, find_gpu
from memgate.schemas import TimelineFitCreate


def test_a_question_knows_its_gpu() -> None:
    """Resolved in one place, with what is used of it already."""
    work = Work(kind=WorkKind.ESTIMATE, gpu=GpuRequest(name="t4", already_used_bytes=5))

    assert (work.target.gpu, work.target.already_used_bytes) == (find_gpu("t4"), 5)


def test_a_copy_of_a_question_is_about_its_own_gpu() -> None:
    """Nothing of the first one's is kept."""
    work = Work(kind=WorkKind.ESTIMATE, gpu=GpuRequest(name="t4"))
    assert work.target.gpu.name == "t4"

    other = work.model_copy(update={"gpu": GpuRequest(name="l4")})

    assert other.target.gpu.name == "l4"


def test_a_question_without_a_known_gpu_is_the_callers_mistake() -> None:
    """The message says what to write."""
    with pytest.raises(InputError, match="gpu is missing: name one of the catalogue"):
        _ = Work(kind=WorkKind.ESTIMATE).target
    with pytest.raises(UnknownGpuError, match="t5"):
        _ = Work(kind=WorkKind.ESTIMATE, gpu=GpuRequest(name="t5")).target


def test_a_question_about_every_gpu_names_the_upload() -> None:
    """A timeline file has no GPU of its own in the question: all of the catalogue are asked."""
    asked = TimelineFitCreate(allocator="expandable_segments:True").work("key")

    assert (asked.kind, asked.trace, asked.gpu) == (WorkKind.FIT, "key", None)


def test_a_record_of_no_known_kind_has_no_answer() -> None:
    """What a newer version has stored is not read as something else."""
    with pytest.raises(ValidationError) as refused:
        JobRecord.model_validate({"id": "1", "kind": "dream", "result": "{}"})

    assert ("kind",) in [mistake["loc"] for mistake in refused.value.errors()]
