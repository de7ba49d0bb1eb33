"""``/ui/jobs/{id}``: the page of a job, its curve, and what would make it fit."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, JSONResponse, Response
from pydantic import ValidationError

from memgate.contract import JobRecord, UnknownJobError
from memgate.report import Estimate, Fit
from memgate.views import TimelineView, thin_view
from memgate_service.dashboard.advice import ask_all, describe_run, find_fit, read_advice
from memgate_service.dashboard.job_view import (
    capacity_line,
    describe_gpu,
    describe_job,
    list_layers,
    list_phases,
    prune_layers,
    slice_breakdown,
    strip_of,
)
from memgate_service.dashboard.links import open_data, open_page, read_own
from memgate_service.dashboard.mistakes import next_step, whose_mistake
from memgate_service.dashboard.ranks_view import view_ranks
from memgate_service.dashboard.rendering import render, render_part
from memgate_service.dashboard.viewers import LinkViewer, Submitter, Viewer
from memgate_service.http.dependencies import Dependencies, Deps
from memgate_service.http.errors import ProblemError
from memgate_service.http.questions import is_advice_pending
from memgate_service.http.routes.jobs import JobId

job_pages = APIRouter(include_in_schema=False, prefix="/ui/jobs")

#: about one for each column of a chart on a wide screen
_POINTS = 2000

Event = Annotated[int, Query(ge=0, le=1 << 40)]


@job_pages.get("/{job_id}")
def read_page(request: Request, job_id: JobId, deps: Deps, viewer: LinkViewer) -> Response:
    """Return the page of a job in its current state."""
    request.state.job = job_id
    try:
        record, viewer = open_page(deps, job_id, viewer)
    except UnknownJobError as error:
        return render(request, "missing.html", viewer, status=404, message=error.message)
    context: dict[str, Any] = {
        "record": record,
        "title": describe_job(record),
        "gpu": describe_gpu(record),
    }
    if record.state.is_open:
        return render(request, "job_open.html", viewer, **context)
    if record.error is not None:
        context |= {
            "next_step": next_step(record.error.fault),
            "whose": whose_mistake(record.error.fault),
        }
        return render(request, "job_failed.html", viewer, **context)
    if (said := record.estimate) is None:
        cells = strip_of(record, record.result if isinstance(record.result, Fit) else None)
        return render(request, "job_answered.html", viewer, cells=cells, **context)
    context |= _estimate_context(deps, record, said, viewer)
    return render(request, "job.html", viewer, **context)


def _estimate_context(
    deps: Dependencies, record: JobRecord, said: Estimate, viewer: Viewer
) -> dict[str, Any]:
    view = _load_view(deps, record.run_id)
    layers = prune_layers(view.layers) if view and view.layers else None
    return {
        "explanation": said.explanation,
        "is_advice_pending": is_advice_pending(record),
        "is_above_line": view is not None and max(view.reserved, default=0) > capacity_line(record),
        "slices": slice_breakdown(said.breakdown),
        "ranks": view_ranks(said, record.work.job),
        "how": describe_run(said),
        "view": view,
        "phases": list_phases(view) if view else [],
        "layers": layers,
        "layer_rows": list(list_layers(layers)) if layers else [],
        "advice": read_advice(deps, record, viewer),
        "cells": strip_of(record, find_fit(deps.queue, record)),
    }


def _load_view(deps: Dependencies, job_id: str) -> TimelineView | None:
    """Return the curve of a job, if it exists in this version's layout."""
    packed = deps.queue.load_view(job_id)
    try:
        return None if packed is None else TimelineView.model_validate_json(packed)
    except ValidationError:
        return None


@job_pages.get("/{job_id}/timeline")
def read_curve(
    job_id: JobId,
    deps: Deps,
    viewer: LinkViewer,
    begin: Event = 0,
    end: Event | None = None,
    points: Annotated[int, Query(ge=16, le=20_000)] = _POINTS,
) -> Response:
    """Return the visible part of a memory curve, with as many points as there is room for."""
    record, said = _answered(deps, job_id, viewer)
    view = _load_view(deps, record.run_id)
    if view is None:
        raise ProblemError(404, "the curve is no longer kept; ask again", code="NO_TIMELINE")
    shown = thin_view(view, begin=begin, end=end, max_points=points)
    more = msgspec.json.encode(
        {
            "capacity_bytes": capacity_line(record),
            "gpu": describe_gpu(record),
            "decision": said.decision,
        }
    )
    body = shown.model_dump_json(exclude={"layers"}).encode()[:-1] + b"," + more[1:]
    return Response(body, media_type="application/json")


@job_pages.get("/{job_id}/advice")
def read_proposals(job_id: JobId, deps: Deps, viewer: LinkViewer) -> Response:
    """Return what is known about what would make a job fit."""
    record, viewer = open_data(deps, job_id, viewer)
    return _advice(deps, *_estimated(record), viewer)


@job_pages.post("/{job_id}/advice")
def ask_proposals(job_id: JobId, deps: Deps, viewer: Submitter) -> Response:
    """Have workers find out what would make a job fit; known answers are not asked for again."""
    record, said = _estimated(read_own(deps, job_id, viewer))
    ask_all(deps.queue, record, viewer.owner)
    return _advice(deps, record, said, viewer)


def _advice(deps: Dependencies, record: JobRecord, said: Estimate, viewer: Viewer) -> Response:
    advice = read_advice(deps, record, viewer)
    cells = strip_of(record, find_fit(deps.queue, record))
    is_pending = is_advice_pending(record)
    html = {
        "explanation": render_part(
            "parts/explanation.html", explanation=said.explanation, is_advice_pending=is_pending
        ),
        "advice": render_part("parts/advice.html", advice=advice, viewer=viewer),
        "strip": render_part("parts/strip.html", cells=cells),
    }
    waiting = [one.job for one in advice if one.job and one.state and one.state.is_open]
    return JSONResponse({"html": html, "waiting": waiting, "is_advice_pending": is_pending})


@job_pages.get("/{job_id}/state")
def read_state(job_id: JobId, deps: Deps, viewer: LinkViewer) -> Response:
    """Return a job's progress, as its page shows it."""
    record = open_data(deps, job_id, viewer)[0]
    return HTMLResponse(render_part("parts/progress.html", record=record))


def _answered(deps: Dependencies, job_id: str, viewer: Viewer) -> tuple[JobRecord, Estimate]:
    return _estimated(open_data(deps, job_id, viewer)[0])


def _estimated(record: JobRecord) -> tuple[JobRecord, Estimate]:
    if record.estimate is None:
        detail = f"job {record.id} is not an estimate that is done"
        raise ProblemError(404, detail, code="NO_TIMELINE")
    return record, record.estimate
