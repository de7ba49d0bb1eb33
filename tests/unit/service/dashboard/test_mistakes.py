"""Mistakes, as a person wants to read them."""

from __future__ import annotations

import pytest

from memgate.contract import Work, WorkKind
from memgate.errors import Fault
from memgate.gpus import GpuRequest
from memgate.jobspec import JobSpec
from memgate_service.dashboard.mistakes import find_wrong_gpu, next_step, whose_mistake
from memgate_service.dashboard.try_it import read_question
from memgate_service.dashboard.what_if import change_work

SPEC = "{model: {source: torchvision, name: resnet18}, input: {shape: [3, 8, 8]}, batch_size: 2%s}"


def _mistakes(more: str, gpu: str = "rtx-3060") -> list[tuple[str, str]]:
    work, mistakes = read_question(SPEC % more, gpu, "auto")
    assert work is None
    return [(mistake.field, mistake.next_step) for mistake in mistakes]


def test_a_right_spec_is_a_question() -> None:
    """On the GPU of the form; a whole request brings its own."""
    work, mistakes = read_question(SPEC % "", "t4", "phantom")
    whole, _ = read_question('{"job": %s, "gpu": "a10g"}' % (SPEC % ""), "t4", "auto")

    assert not mistakes
    assert work is not None
    assert (work.gpu, work.engine) == (GpuRequest(name="t4"), "phantom")
    assert whole is not None
    assert whole.gpu == GpuRequest(name="a10g")


@pytest.mark.parametrize(
    ("more", "field", "step"),
    [
        (", batchsize: 3", "batchsize", "did you mean 'batch_size'?"),
        (", zzz: 3", "zzz", "there are: model, input,"),
        (", precision: fp23", "precision", "did you mean 'fp32'?"),
        (", iterations: '8'", "iterations", "write it without quotes: 8"),
        (", allocator: nonsense", "allocator", "write it like this"),
        (", optimizer: {names: Adam}", "optimizer.names", "did you mean 'name'?"),
    ],
)
def test_a_wrong_field_has_a_next_step(more: str, field: str, step: str) -> None:
    """Named as the person wrote it, without the wrapping of a request."""
    ((named, said),) = _mistakes(more)

    assert named == field
    assert step in said


def test_an_unknown_gpu_is_named() -> None:
    """With one that is meant, or with the way to describe it."""
    ((field, step),) = _mistakes("", gpu="rtx-3061")
    assert (field, step[:23]) == ("gpu", "did you mean 'rtx-3060'")
    assert "not modelled" in find_wrong_gpu("MI300X")[0].rule
    assert "describe it" in find_wrong_gpu("abacus")[0].next_step


def test_a_gpu_may_be_called_as_people_call_it() -> None:
    """The question is the same as with its name in the catalogue."""
    work, mistakes = read_question(SPEC % "", "RTX 3060", "auto")

    assert not mistakes
    assert work is not None
    assert work.gpu == GpuRequest(name="rtx-3060")


@pytest.mark.parametrize("text", ["[1, 2]", "just words", "1: 2", "a: " + "[" * 3000])
def test_what_is_no_object_is_explained(text: str) -> None:
    """Numbers, lists, text, and what no parser gets to the bottom of."""
    work, (mistake,) = read_question(text, "t4", "auto")

    assert work is None
    assert mistake.next_step


def test_every_fault_has_a_name_and_a_next_step() -> None:
    """Only a job's own failure is said to happen on a GPU, too."""
    assert [whose_mistake(fault) for fault in Fault] == [
        "Invalid question",
        "The job itself fails",
        "Not supported by memgate yet",
        "The operator must install or configure something",
        "Ask again",
    ]
    assert [fault for fault in Fault if "on a GPU, too" in next_step(fault)] == [Fault.JOB]


def test_another_optimizer_loses_what_was_meant_for_the_first() -> None:
    """Momentum is not for Adam; the same optimizer keeps what it was given."""
    optimizer = {"name": "SGD", "kwargs": {"momentum": 0.9}}
    base = {
        "model": {"source": "torchvision", "name": "resnet18"},
        "input": {"shape": [3, 8, 8]},
        "batch_size": 2,
        "optimizer": optimizer,
    }
    work = Work(kind=WorkKind.ESTIMATE, job=JobSpec.model_validate(base), gpu=GpuRequest(name="t4"))
    change = {
        "batch_size": 4,
        "precision": "fp32",
        "allocator": "",
        "gradient_checkpointing": False,
    }

    other, _ = change_work(work, "a10g", change | {"optimizer": "Adam"})
    same, _ = change_work(work, "", change | {"optimizer": "SGD"})

    assert other is not None
    assert other.job is not None
    assert (other.job.optimizer.name, other.job.optimizer.kwargs) == ("Adam", {})
    assert other.gpu == GpuRequest(name="a10g")
    assert same is not None
    assert same.job is not None
    assert same.job.optimizer.kwargs == optimizer["kwargs"]
    assert same.gpu == GpuRequest(name="t4")


def test_a_trace_can_only_change_its_gpu_and_its_allocator() -> None:
    """The rest of the form is not looked at."""
    work = Work(kind=WorkKind.ESTIMATE, trace="0" * 64, gpu=GpuRequest(name="t4"))

    other, _ = change_work(work, "a10g", {"allocator": "expandable_segments:True"})
    wrong, (mistake,) = change_work(work, "", {"allocator": "nonsense"})

    assert other is not None
    assert (other.allocator, other.trace) == ("expandable_segments:True", "0" * 64)
    assert wrong is None
    assert mistake.field == "allocator"
