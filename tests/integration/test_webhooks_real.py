"""Recorded reviews of a real API server, judged by the real engine: nothing is made up."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from typing import Any

import pytest

from memgate.gpus import CATALOGUE
from memgate_worker.runtimes.runtime import DEFAULT_RUNTIME, read_runtimes
from tests.admission import JOB, read_patch, read_recorded
from tests.integration.whole import Whole, wait_until

pytestmark = pytest.mark.skipif(
    not read_runtimes()[DEFAULT_RUNTIME].is_installed,
    reason=f"runtime {DEFAULT_RUNTIME} is not built: make runtime",
)

_SMALL = {
    "model": {"source": "torchvision", "name": "resnet18"},
    "input": {"shape": [3, 64, 64]},
    "batch_size": 16,
}


@pytest.fixture(scope="module")
def memgate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Whole]:
    """Everything, as ``memgate up`` starts it, with a worker that is warm."""
    with Whole(tmp_path_factory.mktemp("memgate"), MEMGATE_RIGHT_SIZE="hami") as whole:
        question = {"job": _SMALL, "gpu": "rtx-3060"}
        wait_until(
            lambda: whole.ask("POST", "/estimate", question, wait=30)[0] == 200, 180, "no answer"
        )
        yield whole


def _ask(memgate: Whole, verb: str, review: dict[str, Any]) -> dict[str, Any]:
    status, answer = memgate.ask("POST", f"/webhooks/kubernetes/{verb}?timeout=30s", review)
    assert status == 200, answer
    response = answer["response"]
    assert isinstance(response, dict)
    assert response["uid"] == review["request"]["uid"]
    return response


def _with_batch(size: int) -> dict[str, Any]:
    review = copy.deepcopy(read_recorded("create-job"))
    annotations = review["request"]["object"]["metadata"]["annotations"]
    annotations[JOB] = annotations[JOB].replace("batch_size: 64", f"batch_size: {size}")
    return review


def test_a_job_that_fits_is_let_in_and_right_sized(memgate: Whole) -> None:
    """What is filled in is the upper bound that ``POST /estimate`` tells, in whole MiB."""
    review = _with_batch(64)

    assert _ask(memgate, "validate", review)["allowed"]
    patch = read_patch(_ask(memgate, "mutate", review))

    estimate_id = next(step["value"] for step in patch if step["path"].endswith("~1estimate-id"))
    _, job = memgate.ask("GET", f"/jobs/{estimate_id}")
    filled = next(step["value"] for step in patch if step["path"].endswith("~1gpumem"))
    assert int(filled) == -(-job["result"]["needs_bytes"] // 2**20)


def test_a_refusal_is_true(memgate: Whole) -> None:
    """The batch it names is let in, one more is not; the GPU it names is large enough."""
    wait_until(
        lambda: "the largest" in _refusal(memgate, 512), 120, "the largest batch was never found"
    )
    said = _refusal(memgate, 512)
    found = re.search(r"batch size (\d+) fits, .* as it is, it fits on ([^, ]+),", said)
    assert found is not None, said
    batch, gpu = int(found.group(1)), CATALOGUE[found.group(2)]

    assert "warnings" not in _ask(memgate, "validate", _with_batch(batch))
    more = _ask(memgate, "validate", _with_batch(batch + 1))
    assert not more["allowed"] or "may not fit" in more["warnings"][0]
    elsewhere = _with_batch(512)
    pod = elsewhere["request"]["object"]["spec"]["template"]["spec"]
    pod["nodeSelector"]["nvidia.com/gpu.product"] = gpu.product.replace(" ", "-")
    assert _ask(memgate, "validate", elsewhere)["allowed"]


def _refusal(memgate: Whole, batch: int) -> str:
    response = _ask(memgate, "validate", _with_batch(batch))
    assert not response["allowed"]
    return str(response["status"]["message"])
