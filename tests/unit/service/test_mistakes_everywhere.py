"""One mistake, one sentence: command line, HTTP, dashboard, gates."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memgate.contract import Failure
from memgate.errors import InputError, UnsupportedJobError
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
    spec = tmp_path / "job.json"
    spec.write_text(json.dumps(JOB | {"compile": True}))

    ran = run("estimate", spec, "--gpu", "t4")
    with pytest.raises(UnsupportedJobError) as raised:
        check_supported(parse_job_spec(JOB | {"compile": True}))

    assert ran.status == 1
    assert raised.value.mistakes[0].field == "compile"
    assert raised.value.mistakes[0].sentence in ran.err
