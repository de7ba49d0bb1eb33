"""The webhooks of Kubernetes on a real Valkey: let in, refused, warned of, held, right-sized."""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from memgate.contract import Failure
from memgate.errors import Fault
from memgate.units import GIB, MIB
from tests.admission import (
    JOB,
    SPEC,
    T4,
    make_pod,
    make_review,
    read_patch,
    read_recorded,
)
from tests.integration.gates import Gate
from tests.integration.pages import run_of
from tests.running import wait_until

_ON_T4 = make_review(make_pod(nodeSelector=T4))


def test_what_has_no_annotation_passes_untouched(gate: Gate) -> None:
    """At once, and nobody is asked."""
    for review in (
        make_review(make_pod(annotations={})),
        make_review({"kind": "Secret"}, "Secret"),
        make_review(None, operation="DELETE"),
        read_recorded("create-without"),
    ):
        for verb in ("validate", "mutate"):
            response = gate.ask(verb, review)
            assert response == {"uid": review["request"]["uid"], "allowed": True}
    assert gate.store.num_jobs() == 0


def test_what_fits_is_let_in(gate: Gate) -> None:
    """Without a word, but for the audit log."""
    gate.learn(_ON_T4, 8 * GIB)
    response = gate.ask("validate", _ON_T4)
    assert response["allowed"] is True
    assert "warnings" not in response
    assert response["auditAnnotations"]["outcome"] == "admit"


def test_what_does_not_fit_is_refused_with_what_would(gate: Gate) -> None:
    """A person can act on it: need, capacity, batch, GPU, estimate."""
    gate.learn(_ON_T4, 20 * GIB)
    response = gate.ask("validate", _ON_T4)

    assert response["allowed"] is False
    assert response["status"]["code"] == 403
    message = response["status"]["message"]
    said, _, job_id = message.rpartition("; see /ui/jobs/")
    assert said == (
        "memgate: does not fit on t4: needs 20.91 GiB, t4 has 14.56 GiB; batch size 32 fits, the"
        " largest that does; as it is, it fits on l4, a10, a10g"
    )
    assert [run_of(gate.client, job_id)] == gate.store.newest(0, 9)


def test_a_question_of_a_review_is_its_namespace_s(gate: Gate) -> None:
    """With user and name beside it; an object that is reviewed again keeps its question."""
    gate.learn(_ON_T4, 2 * GIB)
    review = copy.deepcopy(_ON_T4)
    review["request"]["object"]["metadata"]["name"] = "train"

    mutated = gate.mutated(review)
    noted = mutated["request"]["object"]["metadata"]["annotations"]["memgate.dev/estimate-id"]
    warned = gate.ask("validate", mutated)
    again = gate.mutated(mutated)
    record = gate.client.get(f"/jobs/{noted}").json()
    other = copy.deepcopy(mutated)
    other["request"]["namespace"] = "others"
    theirs = gate.mutated(other)["request"]["object"]["metadata"]["annotations"]

    assert warned["allowed"]
    owner = {"namespace": "team", "user": "ada", "job_name": "train", "key": "", "cluster": ""}
    assert record["owner"] == owner
    assert again == mutated
    assert theirs["memgate.dev/estimate-id"] != noted, "whoever copies an id gets one of their own"


def test_every_door_says_the_same(gate: Gate) -> None:
    """One size, one sentence: what kubectl shows is what ``POST /estimate`` explains."""
    gate.learn(_ON_T4, 20 * GIB)
    asked = {"job": SPEC, "gpu": "t4"}
    estimate = gate.client.post("/estimate", json=asked).json()
    said = estimate["explanation"]
    message = gate.ask("validate", _ON_T4)["status"]["message"]
    assert message.startswith("memgate: " + "; ".join([said["headline"], *said["helps"]]))


@pytest.mark.parametrize(
    ("policy", "want_allowed"), [("admit", True), ("reject", False), ("hold", False)]
)
def test_what_is_uncertain_is_the_operators_to_decide(
    make_gate: Callable[..., Gate], policy: str, want_allowed: bool
) -> None:
    """A warning, a refusal, or a hold; what nobody held is refused."""
    gate = make_gate(admission_on_uncertain=policy)
    gate.learn(_ON_T4, int(14.1 * GIB))

    response = gate.ask("validate", _ON_T4)

    assert response["allowed"] is want_allowed
    said = response["warnings"][0] if want_allowed else response["status"]["message"]
    assert "memgate: may not fit on t4: needs" in said


@pytest.mark.parametrize(
    ("policy", "want_allowed"), [("admit", True), ("reject", False), ("hold", False)]
)
def test_no_answer_in_time_is_the_operators_to_decide(
    make_gate: Callable[..., Gate], policy: str, want_allowed: bool
) -> None:
    """Clients of Kubernetes try again by themselves when they are told 429."""
    gate = make_gate(admission_on_timeout=policy)

    response = gate.ask("validate", _ON_T4)

    assert response["allowed"] is want_allowed
    if want_allowed:
        assert response["warnings"][0].startswith("memgate: no answer yet")
    else:
        status = response["status"]
        assert status["code"] == 429
        assert status["details"] == {"retryAfterSeconds": 3}
        assert "try again in 3 s" in status["message"]
    assert gate.store.num_open() == 1


def test_a_dry_run_asks_nobody(gate: Gate) -> None:
    """It finds what is known, and leaves no trace."""
    review = make_review(make_pod(nodeSelector=T4), dryRun=True)
    for verb in ("mutate", "validate"):
        assert gate.ask(verb, review)["allowed"]
    assert "a dry run does not" in gate.ask("validate", review)["warnings"][0]
    assert gate.store.num_jobs() == 0

    gate.learn(_ON_T4, 20 * GIB)
    assert not gate.ask("validate", review)["allowed"]


def test_a_job_that_cannot_be_run_is_uncertain(gate: Gate) -> None:
    """Not refused: that says nothing about its memory."""
    gate.ask("validate", _ON_T4)
    (job_id,) = gate.store.open_jobs()
    gate.store.fail(job_id, Failure(code="JOB_FAILED", message="no such layer", fault=Fault.JOB))

    response = gate.ask("validate", _ON_T4)

    assert response["allowed"]
    assert "memgate: the job would fail on the GPU: no such layer" in response["warnings"][0]


#: whose fault it is that there is no estimate: what it counts as, what is said, and whether the
#: object gets in by default, under a strict policy for doubts, and under one for no answers
FAULTS = [
    (Fault.CALLER, "wrong", "the pod: annotation memgate.dev/job: why not", (False, False, False)),
    (Fault.JOB, "uncertain", "the job would fail on the GPU: why not", (True, False, True)),
    (Fault.UNSUPPORTED, "uncertain", "a limit of memgate's, not the job's", (True, False, True)),
    (Fault.OPERATOR, "unknown", "until its operator acts: why not", (True, True, False)),
    (Fault.PASSING, "unknown", "no answer yet: why not", (True, True, False)),
]


@pytest.mark.parametrize(("fault", "outcome", "want", "allowed"), FAULTS, ids=list(Fault))
def test_the_fault_alone_decides(
    make_gate: Callable[..., Gate],
    fault: Fault,
    outcome: str,
    want: str,
    allowed: tuple[bool, bool, bool],
) -> None:
    """Only its author's mistake refuses an object by default; whatever the code of the error."""
    policies = [{}, {"admission_on_uncertain": "reject"}, {"admission_on_timeout": "reject"}]
    failure = Failure(code="ANY", message="why not", fault=fault)
    for number, (policy, is_allowed) in enumerate(zip(policies, allowed, strict=True), start=1):
        gate = make_gate(admission_wait_seconds=20, **policy)
        spec = json.dumps(SPEC | {"batch_size": number})
        review = make_review(make_pod(annotations={JOB: spec}, nodeSelector=T4))
        with _failing(gate, failure):
            response = gate.ask("validate", review)
        assert response["allowed"] is is_allowed
        said = response["warnings"] if is_allowed else [response["status"]["message"]]
        assert want in " ".join(said)
        series = f'{{allowed="{"yes" if is_allowed else "no"}",outcome="{outcome}"}} 1.0'
        assert f"memgate_admissions_total{series}" in gate.client.get("/metrics").text


@contextmanager
def _failing(gate: Gate, failure: Failure) -> Iterator[None]:
    """Have the first job that is asked for fail while somebody waits for it."""

    def fail() -> None:
        wait_until(lambda: bool(gate.store.open_jobs()), "a job", 20)
        (job_id,) = gate.store.open_jobs()
        assert gate.store.fail(job_id, failure)

    thread = threading.Thread(target=fail)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def test_a_long_warning_is_told_to_its_end(gate: Gate) -> None:
    """API servers cut one at 256 characters, and what to do stands at the end."""
    gate.ask("validate", _ON_T4)
    (job_id,) = gate.store.open_jobs()
    why = "so it is " * 25 + "and therefore take another runtime"
    gate.store.fail(job_id, Failure(code="JOB_FAILED", message=why, fault=Fault.JOB))

    warnings = gate.ask("validate", _ON_T4)["warnings"]

    assert all(warning.startswith("memgate: ") and len(warning) <= 250 for warning in warnings)
    assert len(warnings) == 2
    said, _, question = warnings[1].rpartition("; see /ui/jobs/")
    assert said.endswith("take another runtime")
    assert run_of(gate.client, question[:32]) == job_id


@pytest.mark.parametrize(
    ("annotations", "want"),
    [
        (
            {JOB: "batch_size: many"},
            "the pod: annotation memgate.dev/job: job spec: 3 mistakes: (1) model is",
        ),
        ({JOB: "{"}, "neither JSON nor YAML"),
        (
            {JOB: ""},
            "annotation memgate.dev/job: job spec: the whole is null: it must be an object",
        ),
        ({JOB: json.dumps(SPEC), "memgate.dev/gpu": "gtx"}, "annotation memgate.dev/gpu"),
        ({JOB: json.dumps(SPEC), "gpu-memory": "lots"}, "gpu-memory is 'lots'"),
    ],
)
def test_a_wrong_annotation_is_refused_with_what_is_wrong(
    gate: Gate, annotations: dict[str, str], want: str
) -> None:
    """Whoever wrote it is there to mend it; the other webhook leaves it alone."""
    review = make_review(make_pod(annotations=annotations))
    response = gate.ask("validate", review)
    assert not response["allowed"]
    assert want in response["status"]["message"]
    assert "patch" not in gate.ask("mutate", review)


def test_an_unknown_gpu_is_warned_of(gate: Gate) -> None:
    """The catalogue's gap is no fault of the pod."""
    review = make_review(make_pod(nodeSelector={"nvidia.com/gpu.product": "NVIDIA-B100"}))
    response = gate.ask("validate", review)
    assert response["allowed"]
    assert "'NVIDIA-B100' is not in the catalogue" in response["warnings"][0]


def test_without_a_gpu_it_is_said_that_nothing_was_checked(gate: Gate) -> None:
    """With what the job needs."""
    review = make_review(make_pod())
    gate.learn(review, 8 * GIB)
    response = gate.ask("validate", review)
    assert response["allowed"]
    assert "no GPU is named, so it was not checked" in response["warnings"][0]


def test_either_gpu_must_do(gate: Gate) -> None:
    """What fits on some of the places is warned of, what fits on none is refused."""
    review = copy.deepcopy(read_recorded("create-deployment"))
    gate.learn(review, 16 * GIB)
    warning = " ".join(gate.ask("validate", review)["warnings"])
    assert "fits on a10g, but may not fit on t4: needs 16.86 GiB, t4 has 14.56 GiB" in warning
    assert "to choose the GPU, add the node selector nvidia.com/gpu.product" in warning
    assert gate.store.num_jobs() == 2  # one for each generation

    template = review["request"]["object"]["spec"]["template"]
    template["metadata"]["annotations"][JOB] = json.dumps(SPEC)
    gate.learn(review, 30 * GIB)
    refused = gate.ask("validate", review)
    assert not refused["allowed"]
    assert "does not fit on any of t4, a10g" in refused["status"]["message"]


def test_memory_that_was_declared_is_checked_without_another_question(gate: Gate) -> None:
    """All parts of a GPU are judged by one answer."""
    for mib, want in ((9000, True), (4000, False)):
        limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": mib}
        review = make_review(make_pod(limits=limits, nodeSelector=T4))
        gate.learn(review, 8000 * MIB)
        response = gate.ask("validate", review)
        assert response["allowed"] is want
    message = response["status"]["message"]
    want_said = "needs 8.57 GiB, nvidia.com/gpumem declares 3.91 GiB; declare 8772 MiB or more"
    assert want_said in message
    assert gate.asked() == ["estimate", "max-batch"]  # the second by the refusal, as advice


def test_an_edit_that_changes_nothing_for_us_is_let_through(gate: Gate) -> None:
    """A job that would be refused today can still be labelled, scaled and deleted."""
    gate.learn(read_recorded("create-deployment"), 80 * GIB)
    for name in ("update-label", "update-image"):
        review = read_recorded(name)
        for verb in ("validate", "mutate"):
            assert gate.ask(verb, review) == {"uid": review["request"]["uid"], "allowed": True}
    changed = copy.deepcopy(read_recorded("update-label"))
    pod = changed["request"]["object"]["spec"]["template"]["spec"]
    pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = "2"
    gate.learn(changed, 80 * GIB)  # two GPUs are another question
    assert not gate.ask("validate", changed)["allowed"]
    changed["request"]["object"]["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert gate.ask("validate", changed)["allowed"]


@pytest.mark.parametrize(
    "name",
    [
        *("create-job", "create-cronjob", "create-pytorchjob", "create-trainjob"),
        *("create-rayjob", "create-jobset", "create-statefulset-volcano", "create-job-kueue"),
        *("create-pod-hami", "create-deployment"),
    ],
)
def test_recorded_objects_of_every_kind_are_judged(gate: Gate, name: str) -> None:
    """As a real API server sent them: let in if they fit, refused if not, patched alike twice."""
    review = read_recorded(name)
    gate.learn(review, 2 * GIB)
    mutated = gate.mutated(review)
    assert "memgate.dev/estimate" in mutated["request"]["object"]["metadata"]["annotations"]
    assert gate.ask("validate", mutated)["allowed"]
    assert read_patch(gate.ask("mutate", mutated)) == []


@pytest.mark.parametrize("name", ["create-job", "create-rayjob", "create-trainjob"])
def test_recorded_objects_that_do_not_fit_are_refused(gate: Gate, name: str) -> None:
    """Whatever their kind."""
    review = read_recorded(name)
    gate.learn(review, 200 * GIB)
    assert "does not fit" in gate.ask("validate", review)["status"]["message"]
    assert "patch" not in gate.ask("mutate", review)


def test_a_kind_of_the_operators_own_is_judged(make_gate: Callable[..., Gate]) -> None:
    """By a path in the settings."""
    gate = make_gate(admission_paths={"AppWrapper.codeflare.dev": {"templates": ["/spec/pods/*"]}})
    review = make_review(
        {"metadata": {}, "spec": {"pods": [make_pod(nodeSelector=T4)]}},
        *("AppWrapper", "codeflare.dev"),
    )
    gate.learn(review, 20 * GIB)
    assert "does not fit" in gate.ask("validate", review)["status"]["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b"[]",
        b"{",
        b'{"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview", "request": {}}',
        b'{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}',
        b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":1}}',
    ],
)
def test_what_is_no_review_is_a_problem(gate: Gate, body: bytes) -> None:
    """With what is wrong; an API server then does as its failure policy says."""
    headers = {"Content-Type": "application/json"}
    answer = gate.client.post("/webhooks/kubernetes/validate", content=body, headers=headers)
    assert answer.status_code == 422
    assert "not an AdmissionReview of admission.k8s.io/v1" in answer.json()["detail"]


def test_a_queue_that_is_away_counts_as_no_answer(make_gate: Callable[..., Gate]) -> None:
    """In the time that there is, however long the queue would try."""
    gate = make_gate(redis_url="redis://127.0.0.1:1/0", admission_wait_seconds=0.2)
    response = gate.ask("validate", _ON_T4, timeout="2s")
    assert response["allowed"]
    assert "memgate's queue" in response["warnings"][0]


def test_a_service_for_webhooks_has_nothing_else(make_gate: Callable[..., Gate]) -> None:
    """It needs no key, so it offers nothing that does."""
    gate = make_gate(serve="webhooks", host="0.0.0.0")
    assert gate.ask("validate", _ON_T4)["allowed"]
    for path in ("/estimate", "/jobs", "/docs", "/gpus"):
        assert gate.client.get(path).status_code == 404
    assert gate.client.get("/healthz").status_code == 200


def test_elsewhere_webhooks_need_a_key(make_gate: Callable[..., Gate]) -> None:
    """Nobody without a key gets in."""
    gate = make_gate(host="0.0.0.0")
    answer = gate.client.post("/webhooks/kubernetes/validate", json=_ON_T4)
    assert answer.status_code == 401
