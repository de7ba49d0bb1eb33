"""Fields of the OpenAPI document whose models say nothing about them -> a sentence for each.

A field's own docstring in its model goes first; the fields of an estimate are in the glossary. What
is here is what is left: names that several schemas share, and objects of Kubernetes, whose own
documentation has more. A contract test fails where a field has no sentence.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from memgate.glossary import GLOSSARY

#: by ``Schema.field``, or by the field alone where it means the same everywhere
_SENTENCES = {
    "id": "Of the job.",
    "state": "How far the job has come.",
    "kind": "What is asked: `estimate`, `fit` or `max_batch`.",
    "priority": "Which of the waiting questions goes first.",
    "engine": "What runs the job: `auto`, `phantom` or `profile`; of an answer, what ran it.",
    "job": "The job spec.",
    "gpu": "The GPU.",
    "decision": "`admit`, `uncertain`, `reject`; `unknown` where there is no answer.",
    "reason": "Why, in a code and a sentence.",
    "capacity_bytes": "What the GPU has.",
    "needs_bytes": "What the job needs there; null where that is not known.",
    "upper_bound_bytes": "The older name of `needs_bytes`.",
    "headroom_bytes": "What is left; below 0, what is missing.",
    "compute_capability": "As CUDA counts generations, such as 8.6.",
    "memory_bytes": "What programs see of its memory.",
    "allocator": "What `PYTORCH_ALLOC_CONF` would be, instead of the file's own.",
    "Reason.code": "Stable; the page /docs/errors lists all of them.",
    "Reason.message": "For a person, with figures.",
    "Failure.code": "Stable; the page /docs/errors lists all of them.",
    "Failure.message": "For a person, with the next step.",
    "Oom.event": "Which allocation of the job fails, counted from 0.",
    "Oom.message": "As PyTorch would write it.",
    "Fit.gpus": "Each GPU of the catalogue, the smallest first.",
    "MaxBatch.tried": "The batch sizes that were asked about, in that order.",
    "TriedBatch.batch_size": "Samples.",
    "AccuracyGroup.num_outcomes": "Jobs whose measured peak was reported.",
    "AccuracyGroup.median_relative_error": "Of the predicted peak; null without outcomes.",
    "AccuracyGroup.share_beyond_10_percent": "Predictions that were further off, of 1.",
    "AccuracyRead.all": "All outcomes.",
    "AccuracyRead.by_gpu": "By the name of the GPU.",
    "AccuracyRead.by_model": "By the name of the model.",
    "GpuRead.name": "Its name in questions.",
    "GpuRead.product": "Its name at NVIDIA.",
    "GpuRead.multiprocessors": "How many it has; sizes of some workspaces follow from it.",
    "GpuRead.lowest_reported_bytes": "The lowest total memory that was reported.",
    "JobList.jobs": "Those of this page.",
    "JobRecord.asked_by": "A caller, or memgate itself, for advice or a gate.",
    "JobRecord.created_at": "When it was asked.",
    "JobRecord.started_at": "When a worker began; null while it waits.",
    "JobRecord.finished_at": "When it ended; null before.",
    "JobRecord.worker": "The name of the worker that has it, or had it.",
    "JobRecord.work": "The question.",
    "JobRecord.error": "Why there is no answer, if it failed.",
    "Layer.name": "Of the layer in the one around it; empty for the model.",
    "Layer.size_bytes": "What it held at the peak, with those in it.",
    "Layer.children": "The layers in it, the largest first.",
    "MeasuredOutcome.job": "Id of the estimate's job.",
    "MeasuredOutcome.model": "Its name.",
    "MeasuredOutcome.predicted_peak_bytes": "The peak that was predicted on that GPU.",
    "MeasuredOutcome.measured_peak_bytes": "The peak that was measured.",
    "MeasuredOutcome.ran_out": "It ran out of memory.",
    "Mistake.rule": "What the value must be.",
    "Mistake.next_step": "What to write instead, where that is known.",
    "OutcomeCreate.gpu_product": "The GPU it ran on, as its driver calls it, if it was another.",
    "PhaseSpan.phase": "`forward`, `backward` or `optimizer`.",
    "PhaseSpan.begin": "Its first event.",
    "PhaseSpan.end": "The event after its last.",
    "Problem.title": "The kind of problem, in a few words.",
    "Problem.status": "The HTTP status.",
    "Problem.detail": "For a person, with the next step.",
    "TimelineView.num_events": "Of the whole run.",
    "TimelineView.reserved": "What the allocator held of the GPU after each event that is shown.",
    "TimelineView.allocated": "What the job held of that.",
    "TimelineView.phases": "Forward pass, backward pass and optimizer of each iteration.",
    "apiVersion": "Of Kubernetes' AdmissionReview.",
    "uid": "Of the request; the response has the same.",
    "ReviewRequest.kind": "`AdmissionReview`.",
    "ReviewRequest.request": "What is asked.",
    "ReviewResponse.kind": "`AdmissionReview`.",
    "ReviewResponse.response": "What is decided.",
    "Review.kind": "Of the object.",
    "Review.operation": "`CREATE`, `UPDATE` and so on.",
    "Review.namespace": "Of the object.",
    "Review.object": "The object itself.",
    "Review.oldObject": "The object before an update.",
    "Review.dryRun": "Nothing will be stored.",
    "Review.userInfo": "The user that makes the request.",
    "Kind.kind": "Such as Job.",
    "Kind.group": "Such as batch; empty for Pod.",
    "User.username": "The name.",
    "User.groups": "Groups that the user is in.",
    "Response.allowed": "The object may be stored.",
    "Response.status": "Why it may not.",
    "Response.warnings": "Shown to the user.",
    "Response.patchType": "`JSONPatch`, if there is a patch.",
    "Response.patch": "A JSON Patch, as base64.",
    "Response.auditAnnotations": "For the audit log of the cluster.",
    "Status.code": "The HTTP status that the user gets.",
    "Status.reason": "Kubernetes' word for it.",
    "Status.message": "For a person.",
    "Status.details": "`retryAfterSeconds`, where it is refused for now.",
    "Status.status": "`Failure`.",
}


def describe_fields(schemas: dict[str, Any]) -> None:
    """Add a sentence to each field of these schemas that has none."""
    known = _SENTENCES | dict(_glossary())
    for name, schema in schemas.items():
        for field, one in schema.get("properties", {}).items():
            sentence = known.get(f"{name}.{field}", known.get(field))
            if sentence and not one.get("description"):
                one["description"] = sentence


def _glossary() -> Iterator[tuple[str, str]]:
    for terms in GLOSSARY.values():
        for term in terms:
            for field in term.fields:
                yield f"Estimate.{field}", term.meaning
