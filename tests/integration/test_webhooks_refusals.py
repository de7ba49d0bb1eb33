"""What a refusal tells, however a pod says where it will run. On a real Valkey."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from memgate.report import Reason
from memgate.units import GIB, MIB
from memgate_service.http import queue_asker
from tests.admission import JOB, SPEC, T4, make_estimate, make_pod, make_review
from tests.integration.gates import Gate

_A100 = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}
_ON_T4 = make_review(make_pod(nodeSelector=T4))
_HALF = {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50}


@pytest.mark.parametrize(
    ("fields", "want"),
    [
        pytest.param(
            {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000}},
            "nvidia.com/gpumem declares 3.91 GiB; declare 16876 MiB or more; batch size 16 fits,"
            " the largest that does; as it is, it fits on rtx-a4500",
            id="HAMi, on any card",
        ),
        pytest.param(
            {"limits": _HALF, "nodeSelector": {"nvidia.com/gpu.product": "NVIDIA-L4"}},
            "nvidia.com/gpumem-percentage declares 10.98 GiB; declare 76 % or more;"
            " batch size 16 fits, the largest that does",
            id="HAMi, half a card",
        ),
        pytest.param(
            {"limits": {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 20000}, "nodeSelector": T4},
            "t4 has 14.56 GiB; batch size 32 fits, the largest that does",
            id="HAMi, more than the card has",
        ),
        pytest.param(
            {"limits": {}, "annotations": {JOB: json.dumps(SPEC), "gpu-memory": "4096"}},
            "annotation gpu-memory declares 4.00 GiB; declare 16876 MiB or more;"
            " batch size 16 fits, the largest that does",
            id="KAI",
        ),
        pytest.param(
            {"limits": {"volcano.sh/vgpu-number": 1, "volcano.sh/vgpu-memory": 4096}},
            "volcano.sh/vgpu-memory declares 4.00 GiB; declare 16876 MiB or more;"
            " batch size 16 fits, the largest that does",
            id="Volcano",
        ),
        pytest.param(
            {"limits": {"nvidia.com/mig-1g.10gb": 1}},
            "does not fit on any of a100-40-1g.10gb, a100-80-1g.10gb, h100-80-1g.10gb: needs"
            " 16.48 GiB, a100-40-1g.10gb has 9.62 GiB, a100-80-1g.10gb has 9.50 GiB,"
            " h100-80-1g.10gb has 9.75 GiB;"
            " batch size 32 fits on h100-80-1g.10gb, the largest that does",
            id="a part of either card",
        ),
    ],
)
def test_however_a_place_is_named_a_refusal_tells_what_would_fit(
    gate: Gate, fields: dict[str, Any], want: str
) -> None:
    """Need, capacity, largest batch, smallest GPU; a batch not known in time is left out."""
    review = make_review(make_pod(**fields))
    gate.learn(review, 16000 * MIB)

    first = gate.ask("validate", review)["status"]["message"]
    assert {gate.store.read(job_id).asked_by for job_id in gate.store.open_jobs()} <= {"gate"}
    assert ("the largest that does" in first) is ("batch size 32" in want)
    gate.learn(review, 16000 * MIB)
    dry = {**review, "request": {**review["request"], "dryRun": True}}
    for asked in (dry, review):
        message = gate.ask("validate", asked)["status"]["message"]
        assert want in message
        assert "as it is, it fits on rtx-a4500" in message


def test_a_refusal_on_a_dry_run_asks_for_no_batch(gate: Gate) -> None:
    """It finds what is known."""
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000}
    gate.learn(make_review(make_pod(limits=limits)), 8000 * MIB)
    response = gate.ask("validate", make_review(make_pod(limits=limits), dryRun=True))
    assert not response["allowed"]
    assert gate.asked() == ["estimate"]


def test_nobody_waits_for_a_batch_that_was_asked_for_long_ago(
    make_gate: Callable[..., Gate], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal that is known comes at once although no worker looks for its batch."""
    monkeypatch.setattr(queue_asker, "_BATCH_SECONDS", 0.5)
    gate = make_gate(admission_wait_seconds=20)
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 4000}
    review = make_review(make_pod(limits=limits))
    gate.ask("mutate", review, timeout="0s")
    gate.learn(review, 8000 * MIB)
    assert not gate.ask("validate", review)["allowed"]
    start = time.monotonic()
    assert not gate.ask("validate", review)["allowed"]
    assert time.monotonic() - start < 0.4


def test_an_uncertain_job_that_is_refused_is_told_its_batch(make_gate: Callable[..., Gate]) -> None:
    """A refusal is one, whatever it is for."""
    gate = make_gate(admission_on_uncertain="reject")
    gate.learn(_ON_T4, int(14.1 * GIB))
    gate.ask("validate", _ON_T4)
    gate.learn(_ON_T4, int(14.1 * GIB))
    assert "batch size 16 fits, the largest" in gate.ask("validate", _ON_T4)["status"]["message"]


def test_of_several_pods_a_refusal_names_those_it_is_about(gate: Gate) -> None:
    """The others are fine; what is said of all is said once, without a name."""
    fits, not_fits = make_pod(nodeSelector=_A100), make_pod(nodeSelector=T4)
    for pods, want in (
        ([fits, not_fits], "memgate: spec.tasks.1.template: does not fit on t4: needs"),
        ([not_fits, not_fits], "memgate: does not fit on t4: needs"),
    ):
        tasks = [{"template": pod} for pod in pods]
        review = make_review({"metadata": {}, "spec": {"tasks": tasks}}, "Job", "batch.volcano.sh")
        gate.learn(review, 20 * GIB)
        message = gate.ask("validate", review)["status"]["message"]
        assert message.startswith(want)
        assert message.count("does not fit") == 1


def test_a_batch_that_fits_is_told_while_the_largest_is_not_known(gate: Gate) -> None:
    """A person can act on that, too."""
    gate.ask("mutate", _ON_T4)
    (job_id,) = gate.store.open_jobs()
    found = Reason(code="SMALLER_BATCH_FITS", message="batch size 8 would be admitted on t4")
    said = make_estimate(20 * GIB)
    hurried = said.model_copy(update={"reasons": [*said.reasons, found]})
    assert gate.store.finish(job_id, hurried.model_dump_json())

    first = gate.ask("validate", _ON_T4)["status"]["message"]
    assert "t4 has 14.56 GiB; batch size 8 would be admitted on t4; as it is" in first

    gate.learn(_ON_T4, 20 * GIB)
    second = gate.ask("validate", _ON_T4)["status"]["message"]
    assert "t4 has 14.56 GiB; batch size 16 fits, the largest that does; as it is" in second
