"""``/ui/jobs/{id}/what-if``: the same job with something changed, and how the answer changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import ValidationError

from memgate.contract import Asker, JobRecord, Priority, UnknownJobError, Work, WorkKind
from memgate.gpus import GpuRequest, list_gpus
from memgate.jobspec import JobSpec, Precision
from memgate.mistakes import Mistake
from memgate.owner import Owner
from memgate.schemas import JOB_ID, TraceEstimateCreate
from memgate_service.dashboard.advice import describe_run
from memgate_service.dashboard.job_view import describe_gpu, describe_job
from memgate_service.dashboard.links import read_own
from memgate_service.dashboard.mistakes import explain, find_wrong_gpu, next_step
from memgate_service.dashboard.rendering import render, render_part
from memgate_service.dashboard.viewers import DataViewer, PageViewer, Submitter
from memgate_service.http.dependencies import Dependencies, Deps
from memgate_service.http.routes.jobs import JobId

what_if = APIRouter(include_in_schema=False, prefix="/ui/jobs")

OPTIMIZERS = ("SGD", "Adam", "AdamW", "Adagrad", "Adafactor", "RMSprop", "Adadelta", "NAdam")
ALLOCATORS = (
    "expandable_segments:True",
    "max_split_size_mb:128",
    "garbage_collection_threshold:0.8",
    "roundup_power2_divisions:4",
)

_REFUSED = "Not with this key"

Text = Annotated[str, Form(max_length=500)]


@what_if.get("/{job_id}/what-if")
def read_page(request: Request, job_id: JobId, deps: Deps, viewer: PageViewer) -> Response:
    """Return the form, filled with the job as it is."""
    if not viewer.may_submit:
        message = "What-if asks the workers, and your key may only read."
        return render(request, "missing.html", viewer, status=403, title=_REFUSED, message=message)
    try:
        record = read_own(deps, job_id, viewer)
    except UnknownJobError as error:
        return render(request, "missing.html", viewer, status=404, message=error.message)
    return render(
        request,
        "what_if.html",
        viewer,
        record=record,
        title=describe_job(record),
        gpu=describe_gpu(record),
        gpus=list_gpus(),
        precisions=list(Precision),
        optimizers=_with_own(record),
        allocators=ALLOCATORS,
        base=_compared(record, record),
    )


def _with_own(record: JobRecord) -> list[str]:
    own = record.work.job.optimizer.name if record.work.job else "SGD"
    return list(dict.fromkeys([own, *OPTIMIZERS]))


@what_if.post("/{job_id}/what-if")
def ask(
    job_id: JobId,
    deps: Deps,
    viewer: Submitter,
    gpu: Text = "",
    batch_size: Text = "",
    precision: Text = "",
    optimizer: Text = "",
    allocator: Text = "",
    checkpointing: Annotated[bool, Form()] = False,
) -> Response:
    """Ask about the job with something changed; say whether that needs a run."""
    record = read_own(deps, job_id, viewer)
    change: dict[str, Any] = {
        "batch_size": int(batch_size) if batch_size.strip().isdecimal() else batch_size,
        "precision": precision,
        "optimizer": optimizer,
        "allocator": allocator.strip(),
        "gradient_checkpointing": checkpointing,
    }
    work, mistakes = change_work(record.work, gpu, change)
    if work is None:
        html = render_part("parts/mistakes.html", mistakes=mistakes)
        return HTMLResponse(html, 422)
    return _submit(deps, work, record, viewer.owner)


def _submit(deps: Dependencies, work: Work, base: JobRecord, owner: Owner) -> Response:
    needs_run = work.job is not None and deps.queue.needs_run(work)
    asked = deps.queue.ask(work, owner, Priority.NORMAL, Asker.DASHBOARD)
    html = render_part("parts/compared.html", row=_compared(asked, base, needs_run=needs_run))
    return JSONResponse({"job": asked.id, "is_open": asked.state.is_open, "html": html})


def change_work(work: Work, gpu: str, change: dict[str, Any]) -> tuple[Work | None, list[Mistake]]:
    """Return a question with something changed, or what is wrong with the change."""
    mistakes: list[Mistake] = []
    target = work.gpu
    if gpu and not (mistakes := find_wrong_gpu(gpu)):
        used = work.gpu.already_used_bytes if work.gpu else 0
        target = GpuRequest(name=gpu, already_used_bytes=used)
    asked = {"kind": WorkKind.ESTIMATE, "gpu": target}
    if work.job is None:  # a trace is the same on any GPU
        try:
            TraceEstimateCreate.model_validate({"gpu": target, "allocator": change["allocator"]})
        except ValidationError as error:
            mistakes += explain(error.errors(include_url=False), TraceEstimateCreate)
        other = work.model_copy(update=asked | {"allocator": change["allocator"]})
        return (None, mistakes) if mistakes else (other, [])
    document = work.job.model_dump(mode="json", by_alias=True) | change
    document["optimizer"] = _optimizer(work.job, change["optimizer"])
    try:
        job = JobSpec.model_validate(document)
    except ValidationError as error:
        return None, mistakes + explain(error.errors(include_url=False), JobSpec)
    return (None, mistakes) if mistakes else (work.model_copy(update=asked | {"job": job}), [])


def _optimizer(job: JobSpec, name: str) -> dict[str, Any]:
    """Return another optimizer; its arguments are kept only if it is the same one."""
    if name == job.optimizer.name:
        return job.optimizer.model_dump()
    return {"name": name}


@what_if.get("/{job_id}/compared")
def read_compared(
    job_id: JobId,
    base: Annotated[str, Query(pattern=JOB_ID)],
    deps: Deps,
    viewer: DataViewer,
) -> Response:
    """Return a row that compares one job with another."""
    row = _compared(read_own(deps, job_id, viewer), read_own(deps, base, viewer))
    return HTMLResponse(render_part("parts/compared.html", row=row))


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedRow:
    """A job next to the one that it was made from."""

    record: JobRecord
    changes: list[str]
    #: whether it took a run or a replay, or will
    how: str
    #: than the other one needs; None if either is not known
    more_bytes: int | None
    next_step: str


def _compared(record: JobRecord, base: JobRecord, *, needs_run: bool | None = None) -> ComparedRow:
    said, before = record.estimate, base.estimate
    how = ""
    if said is not None:
        how = describe_run(said)
    elif needs_run is not None:
        how = "a new run is needed" if needs_run else "a replay is enough"
    return ComparedRow(
        record=record,
        changes=_changes(base, record),
        how=how,
        more_bytes=said.needs_bytes - before.needs_bytes if said and before else None,
        next_step=next_step(record.error.fault) if record.error else "",
    )


def _changes(base: JobRecord, record: JobRecord) -> list[str]:
    """Name what is different."""
    changes = []
    if describe_gpu(base) != describe_gpu(record):
        changes.append(describe_gpu(record))
    if base.work.allocator != record.work.allocator:
        changes.append(f"allocator {record.work.allocator or 'default'}")
    before, after = base.work.job, record.work.job
    if before is None or after is None:
        return changes
    if before.batch_size != after.batch_size:
        changes.append(f"batch {after.batch_size:,}")
    if before.precision != after.precision:
        changes.append(str(after.precision))
    if before.optimizer != after.optimizer:
        changes.append(after.optimizer.name)
    if before.gradient_checkpointing != after.gradient_checkpointing:
        changes.append(f"checkpointing {'on' if after.gradient_checkpointing else 'off'}")
    if before.allocator != after.allocator:
        changes.append(f"allocator {after.allocator or 'default'}")
    return changes
