"""One mistake, one sentence: command line, HTTP, dashboard, gates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memgate.contract import Failure
from memgate.errors import InputError, UnsupportedGpuError, UnsupportedJobError
from memgate.gpus import parse_gpu
from memgate.jobspec import check_supported, parse_job_spec
from memgate.mistakes import Mistake
from memgate.schemas import EstimateCreate
from memgate_service.dashboard.try_it import read_question
from memgate_service.http.bodies import read_json
from memgate_service.http.errors import ProblemError, problem_of_job

JOB: dict[str, Any] = {
    "model": {"source": "torchvision", "name": "resnet18"},
    "input": {"shape": [3, 8, 8]},
    "batch_size": 2,
}


@pytest.mark.parametrize(
    ("change", "want"),
    [
        ({"batch_size": "32"}, "it must be a whole number; write it without quotes: 32"),
        ({"batch_size": 0}, "batch_size is 0: it must be at least 1"),
        ({"batchsize": 3}, "there is no such field; did you mean 'batch_size'?"),
        ({"precision": "fp23"}, "did you mean 'fp32'?"),
        ({"optimizer": {"naem": "SGD"}}, "optimizer.naem is 'SGD': there is no such field; did"),
        ({"allocator": "max_split_size:64"}, "did you mean 'max_split_size_mb'?"),
        ({"trainer": "trl-stf"}, "did you mean 'trl-sft'?"),
        ({"attention": "flsah"}, "did you mean 'flash'?"),
        ({"lora": {}, "quantization": "nf5"}, "did you mean 'nf4'?"),
        ({"lora": {"rnk": 8}}, "lora.rnk is 8: there is no such field; did you mean 'rank'?"),
        ({"input": {"shape": [[3, 8, 8], [3, 8, "9"]]}}, "input.shape.1.2 is '9': it must be a"),
        (
            {"input": {"shape": {"distribution": "norrmal", "longest": 9, "dimensions": [3]}}},
            "did you mean 'normal' or 'lognormal'?",
        ),
    ],
)
def test_a_wrong_spec_reads_the_same_at_every_door(
    run: Any, tmp_path: Path, change: dict[str, Any], want: str
) -> None:
    """Only the way to the field differs: over HTTP the job is a part of the question."""
    document = JOB | change
    spec = tmp_path / "job.json"
    spec.write_text(json.dumps(document))

    ran = run("estimate", spec, "--gpu", "t4")
    with pytest.raises(InputError) as raised:
        parse_job_spec(document)
    with pytest.raises(ProblemError) as refused:
        read_json(EstimateCreate, json.dumps({"job": document, "gpu": "t4"}))
    _, shown = read_question(json.dumps(document), "t4", "auto")

    sentence = raised.value.mistakes[0].sentence
    assert want in sentence
    assert ran.status == 2
    assert sentence in ran.err
    assert refused.value.detail == f"job.{sentence}"
    assert shown[0].sentence == sentence


@pytest.mark.parametrize(
    ("gpu", "want"),
    [
        ("a100", "write one of: a100-40 (39.39 GiB), a100-80 (79.15 GiB)"),
        ("rtx-3O60", "did you mean 'rtx-3060' or 'rtx-3060-ti'?"),
        ("MI300X", "'MI300X'"),
    ],
)
def test_a_wrong_gpu_reads_the_same_at_every_door(
    run: Any, tmp_path: Path, gpu: str, want: str
) -> None:
    """A name that is ambiguous, misspelt, or of another maker."""
    spec = tmp_path / "job.json"
    spec.write_text(json.dumps(JOB))

    ran = run("estimate", spec, "--gpu", gpu)
    with pytest.raises((InputError, UnsupportedGpuError)) as raised:
        parse_gpu(gpu)
    _, shown = read_question(json.dumps(JOB), gpu, "auto")

    (mistake,) = raised.value.mistakes
    assert want in mistake.sentence
    assert mistake.sentence in ran.err
    assert shown[0].sentence == mistake.sentence


@pytest.mark.parametrize(
    ("gpu", "want"), [("rtx3060", "rtx-3060"), ("NVIDIA A100-SXM4-80GB", "a100-80")]
)
def test_a_product_name_is_understood_at_every_door(gpu: str, want: str) -> None:
    """What nvidia-smi prints, and what people type, name the GPU of the catalogue."""
    question = read_json(EstimateCreate, json.dumps({"job": JOB, "gpu": gpu}))
    work, _ = read_question(json.dumps(JOB), gpu, "auto")

    assert parse_gpu(gpu).gpu.name == want
    assert question.work().target.gpu.name == want
    assert work is not None
    assert work.target.gpu.name == want


def test_a_file_of_lengths_is_read_by_the_command_line_alone(run: Any, tmp_path: Path) -> None:
    """A service and its pages open no files: they say who does."""
    document = JOB | {"input": {"shape": {"file": "shapes.txt"}}}
    spec = tmp_path / "job.json"
    spec.write_text(json.dumps(document))
    (tmp_path / "shapes.txt").write_text("3x8x8\n3x8xx\n")

    ran = run("estimate", spec, "--gpu", "t4")
    with pytest.raises(ProblemError) as refused:
        read_json(EstimateCreate, json.dumps({"job": document, "gpu": "t4"}))
    _, shown = read_question(json.dumps(document), "t4", "auto")

    assert "shapes.txt: line 2 is '', and a length is a whole number" in ran.err
    assert "ask with the command line or the Python client" in refused.value.detail
    assert shown[0].field == "input.shape"


def test_lengths_that_vary_may_be_asked_at_every_door() -> None:
    """HTTP and *Try it* take lists and distributions as the command line does."""
    document = JOB | {"input": {"shape": [[3, 8, 8], [3, 16, 8]]}}

    question = read_json(EstimateCreate, json.dumps({"job": document, "gpu": "t4"}))
    work, mistakes = read_question(json.dumps(document), "t4", "auto")

    assert not mistakes
    assert work == question.work()


def test_a_problem_document_has_each_part_of_a_mistake() -> None:
    """For programs: the next step and the near names apart from the sentence."""
    with pytest.raises(ProblemError) as refused:
        read_json(EstimateCreate, json.dumps({"job": JOB | {"batchsize": 3}, "gpu": "t4"}))

    assert refused.value.more["errors"] == [
        {
            "field": "job.batchsize",
            "value": "3",
            "rule": "there is no such field",
            "next_step": "did you mean 'batch_size'?",
            "near": ("batch_size",),
        }
    ]


def test_a_mistake_that_a_worker_found_is_listed_too() -> None:
    """It came through a process, a queue and a store."""
    mistake = Mistake(field="model.config.n_layers", value="96", rule="no", near=("n_layer",))
    stored = Failure.of(InputError.from_mistakes(mistake)).model_dump_json()

    answer = problem_of_job("0" * 32, Failure.model_validate_json(stored))

    document = json.loads(bytes(answer.body))
    assert (answer.status_code, document["fault"]) == (422, "caller")
    assert document["errors"][0]["near"] == ["n_layer"]


def test_what_cannot_be_run_yet_is_said_by_its_field(run: Any, tmp_path: Path) -> None:
    """And the command line does not call it bad input."""
    undivided = {"distributed": {"strategy": "ddp", "world_size": 8}, "ema": True}
    spec = tmp_path / "job.json"
    spec.write_text(json.dumps(JOB | undivided))

    ran = run("estimate", spec, "--gpu", "t4")
    with pytest.raises(UnsupportedJobError) as raised:
        check_supported(parse_job_spec(JOB | undivided))

    assert ran.status == 1
    assert raised.value.mistakes[0].field == "ema"
    assert raised.value.mistakes[0].sentence in ran.err
