"""What tests of the gate are made of: pods, reviews, and answers to what is asked about them."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from memgate.contract import Work, WorkKind
from memgate.gpus import parse_gpu
from memgate.max_batch import MaxBatch, TriedBatch
from memgate.pipeline import estimate_timeline
from memgate.report import Estimate, Reason
from memgate.timeline import Alloc, Category, Free, Label, Timeline

ROOT = Path(__file__).parents[1]

#: a spec, in full: its answer is made up
SPEC = {
    "model": {"source": "torchvision", "name": "resnet18"},
    "input": {"shape": [3, 32, 32]},
    "batch_size": 64,
}
JOB = "memgate.dev/job"
T4 = {"nvidia.com/gpu.product": "Tesla-T4"}


def make_pod(
    *,
    limits: dict[str, Any] | None = None,
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> dict[str, Any]:
    """Make a pod with our annotation that wants a GPU."""
    wanted = {"nvidia.com/gpu": "1"} if limits is None else limits
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": "train",
            "namespace": "team",
            "annotations": {JOB: json.dumps(SPEC)} if annotations is None else annotations,
        },
        "spec": {"containers": [{"name": "train", "resources": {"limits": wanted}}]} | spec,
    }


def make_job(pod: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """Make a Job of a pod."""
    template = {"metadata": {}, "spec": pod["spec"]}
    metadata = pod["metadata"]
    return {"kind": "Job", "metadata": metadata, "spec": {"template": template} | spec}


def make_review(
    document: dict[str, Any] | None,
    kind: str = "Pod",
    group: str = "",
    **request: Any,
) -> dict[str, Any]:
    """Make what an API server asks about an object that is to be made."""
    asked = {
        "uid": "705ab4f5",
        "kind": {"group": group, "version": "v1", "kind": kind},
        "operation": "CREATE",
        "namespace": "team",
        "object": document,
        "oldObject": None,
        "dryRun": False,
        "userInfo": {"username": "ada", "groups": ["research"]},
    }
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": asked | request,
    }


def read_recorded(name: str) -> dict[str, Any]:
    """Return a review that a real API server sent; see tests/record_reviews.py."""
    path = ROOT / "tests" / "data" / "reviews" / f"{name}.json"
    document = json.loads(path.read_text())
    assert isinstance(document, dict)
    return document


def read_patch(response: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the JSON Patch of a response; empty if there is none."""
    if "patch" not in response:
        return []
    assert response["patchType"] == "JSONPatch"
    patch = json.loads(base64.b64decode(response["patch"]))
    assert isinstance(patch, list)
    return patch


def make_estimate(
    size_bytes: int, gpu: object = "t4", *, doubts: tuple[Reason, ...] = ()
) -> Estimate:
    """Judge, for real, a job that takes so much at once."""
    label = Label(Category.ACTIVATIONS, "")
    timeline = Timeline(events=(Alloc(0, size_bytes), Free(0)), labels=(label,))
    return estimate_timeline(
        timeline,
        parse_gpu(gpu),
        engine="phantom",
        runtime="torch-2.14",
        versions={},
        doubts=doubts,
    )


def answer_work(work: Work, size_bytes: int) -> Estimate | MaxBatch:
    """Answer a question as if its job took so much."""
    assert work.gpu is not None
    assert work.job is not None
    said = make_estimate(size_bytes, work.gpu.model_dump(exclude_none=True))
    if work.kind is WorkKind.MAX_BATCH:
        return _largest(work.job.batch_size // 4, said)
    if said.decision != "reject":
        return said
    return said.model_copy(update={"largest_batch_size": work.job.batch_size // 2})


def _largest(batch_size: int | None, said: Estimate) -> MaxBatch:
    tried = TriedBatch(
        batch_size=1,
        decision=said.decision,
        needs_bytes=said.needs_bytes,
        upper_bound_bytes=said.needs_bytes,
    )
    return MaxBatch(
        batch_size=batch_size, headline="", is_monotone=True, tried=[tried], estimate=said
    )
