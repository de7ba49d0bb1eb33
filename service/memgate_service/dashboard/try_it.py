"""``/ui/try``: a job spec or a trace, pasted or dropped, becomes a question."""

from __future__ import annotations

from typing import Annotated, Any, get_args

import anyio.to_thread
import yaml
from fastapi import APIRouter, File, Form, Query, Request, UploadFile
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import ValidationError

from memgate.contract import EngineName, UnknownJobError, Work
from memgate.errors import InputError
from memgate.first_spec import OPTIMIZERS
from memgate.gpus import list_gpus
from memgate.jobspec import Precision, QuantizationMethod, Strategy
from memgate.mistakes import Mistake, show_value
from memgate.schemas import JOB_ID, EstimateCreate, TraceEstimateCreate
from memgate.spec_text import SpecTextError, read_text
from memgate.worlds import fill_question
from memgate_service.dashboard.links import read_own
from memgate_service.dashboard.mistakes import explain, find_wrong_gpu
from memgate_service.dashboard.rendering import render, render_part
from memgate_service.dashboard.spec_form import FIELDS, fill_form, list_models, read_form
from memgate_service.dashboard.viewers import DataViewer, PageViewer, Submitter, Viewer
from memgate_service.http.dependencies import Dependencies, Deps

try_it = APIRouter(include_in_schema=False, prefix="/ui/try")

#: uploads that are in memory at the same time
_uploads = anyio.CapacityLimiter(2)

_MAX_SPEC = 1 << 20

_EXAMPLE = """\
model:
  source: torchvision
  name: resnet50
input:
  shape: [3, 224, 224]
batch_size: 64
optimizer:
  name: AdamW
"""

_EXAMPLE_GPU = "rtx-3060"

_REFUSED = "Not with this key"

Text = Annotated[str, Form(max_length=500)]
FormField = Annotated[str, Form(pattern=f"^({'|'.join(FIELDS)})$")]


@try_it.get("")
def read_page(
    request: Request,
    deps: Deps,
    viewer: PageViewer,
    job: Annotated[str, Query(pattern=f"{JOB_ID}|^$")] = "",
) -> Response:
    """Return the form: with an example, or with a job that was asked about before."""
    if not viewer.may_submit:
        message = "Try it asks the workers, and your key may only read."
        return render(request, "missing.html", viewer, status=403, title=_REFUSED, message=message)
    known = _find_work(deps, job, viewer) if job else None
    return render(
        request,
        "try_it.html",
        viewer,
        gpus=list_gpus(),
        optimizers=OPTIMIZERS,
        precisions=[one.value for one in Precision],
        quantizations=[one.value for one in QuantizationMethod],
        strategies=[one.value for one in Strategy],
        engines=get_args(EngineName),
        spec=_EXAMPLE if known is None else write_question(known),
        gpu=(known and known.gpu and known.gpu.name) or _EXAMPLE_GPU,
        engine=known.engine if known else "auto",
    )


def _find_work(deps: Dependencies, question_id: str, viewer: Viewer) -> Work | None:
    """Return what was asked; None if it is not kept any longer."""
    try:
        return read_own(deps, question_id, viewer).work
    except UnknownJobError:
        return None


def write_question(work: Work) -> str:
    """Write a question so that it can be asked again: the job, and a GPU no list offers."""
    if work.job is None:
        return _EXAMPLE
    document = work.job.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    if work.gpu is not None and (work.gpu.name is None or work.gpu.already_used_bytes):
        gpu = work.gpu.model_dump(mode="json", exclude_defaults=True, exclude_none=True)
        document = {"job": document, "gpu": gpu}
    text: str = yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=1000)
    return text


@try_it.post("/spec")
def ask_spec(
    deps: Deps,
    viewer: Submitter,
    spec: Annotated[str, Form(max_length=_MAX_SPEC)] = "",
    gpu: Text = "",
    engine: Text = "auto",
) -> Response:
    """Ask about a job spec."""
    work, mistakes = read_question(spec, gpu, engine)
    if work is None:
        return HTMLResponse(render_part("parts/mistakes.html", mistakes=mistakes), 422)
    record = deps.queue.ask(work, viewer.owner)
    return JSONResponse({"location": f"/ui/jobs/{record.id}"})


@try_it.get("/models")
def read_models(viewer: DataViewer) -> Response:
    """Return the models that the form's search offers."""
    return JSONResponse(list_models())


@try_it.post("/fields")
def read_fields(
    viewer: Submitter, spec: Annotated[str, Form(max_length=_MAX_SPEC)] = ""
) -> Response:
    """Return what the form shows of a spec; one that is half typed is no mistake."""
    try:
        return JSONResponse(read_form(spec))
    except InputError as error:
        return JSONResponse({"problem": error.message})


@try_it.post("/fill")
def fill_spec(
    viewer: Submitter,
    field: FormField,
    value: Text = "",
    spec: Annotated[str, Form(max_length=_MAX_SPEC)] = "",
) -> Response:
    """Set a field of the form in the text of a spec."""
    try:
        return JSONResponse({"spec": fill_form(spec, field, value)})
    except InputError as error:
        return JSONResponse({"problem": error.message}, 422)


@try_it.post("/trace")
async def ask_trace(
    deps: Deps,
    viewer: Submitter,
    trace: Annotated[UploadFile, File()],
    gpu: Text = "",
    allocator: Text = "",
) -> Response:
    """Ask about an uploaded trace."""
    mistakes = find_wrong_gpu(gpu)
    try:
        asked = TraceEstimateCreate.model_validate({"gpu": gpu, "allocator": allocator.strip()})
    except ValidationError as error:
        mistakes += explain(error.errors(include_url=False), TraceEstimateCreate)
    if mistakes:
        return HTMLResponse(render_part("parts/mistakes.html", mistakes=mistakes), 422)
    async with _uploads:
        name = await anyio.to_thread.run_sync(
            deps.queue.save_trace, trace.file, viewer.owner.caller
        )
    record = await anyio.to_thread.run_sync(deps.queue.ask, asked.work(name), viewer.owner)
    return JSONResponse({"location": f"/ui/jobs/{record.id}"})


def read_question(text: str, gpu: str, engine: str) -> tuple[Work | None, list[Mistake]]:
    """Turn what somebody typed into a question, or into what is wrong with it.

    It is a job spec, or the whole body of ``POST /estimate``, whose own GPU then counts.
    """
    document, mistakes = _read_text(text)
    if mistakes:
        return None, mistakes
    whole = document if "job" in document else {"job": document}
    asked = {"gpu": gpu, "engine": engine} | whole
    if isinstance(asked["gpu"], str):
        mistakes += find_wrong_gpu(asked["gpu"])
    try:
        create = EstimateCreate.model_validate(fill_question(asked))
    except InputError as error:
        return None, [*mistakes, *error.mistakes]
    except ValidationError as error:
        mistakes += explain(error.errors(include_url=False), EstimateCreate, inside="job")
        return None, mistakes
    return (None, mistakes) if mistakes else (create.work(), [])


def _read_text(text: str) -> tuple[dict[str, Any], list[Mistake]]:
    if not text.strip():
        return {}, [_wrong_text("empty", "there must be one", "paste one, or drop it here")]
    try:
        document = read_text(text)
    except SpecTextError as error:
        if error.line is None:
            step = "paste a job spec as the example shows it"
            return {}, [_wrong_text("", error.problem, step)]
        shown = "".join(text.splitlines()[error.line - 1 : error.line]).strip()
        step = "look at that line and the one above"
        return {}, [_wrong_text(show_value(shown), error.problem, step, where=f"line {error.line}")]
    if not isinstance(document, dict) or not all(isinstance(name, str) for name in document):
        rule = "a job spec is an object with named fields"
        step = "begin with 'model:', as the example does"
        return {}, [_wrong_text(show_value(document), rule, step)]
    return document, []


def _wrong_text(value: str, rule: str, step: str, *, where: str = "job spec") -> Mistake:
    return Mistake(field=where, value=value, rule=rule, next_step=step)
