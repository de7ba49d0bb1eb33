"""``/ui/accuracy``: predicted against measured, from what was reported here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from memgate_service.dashboard.coverage import PROMISED, group_rows, make_row, measure_coverage
from memgate_service.dashboard.families import family_of
from memgate_service.dashboard.published import PUBLISHED
from memgate_service.dashboard.rendering import render
from memgate_service.dashboard.viewers import DataViewer, PageViewer
from memgate_service.http.dependencies import Deps
from memgate_worker.queue.client import MeasuredOutcome

accuracy_page = APIRouter(include_in_schema=False, prefix="/ui/accuracy")

#: more would show nothing more
_MAX_POINTS = 4000

#: how many outcomes the figures are made from: the newest
_MAX_OUTCOMES = 20_000

#: rows of a table
_MAX_GROUPS = 40


@accuracy_page.get("")
def read_page(request: Request, deps: Deps, viewer: PageViewer) -> Response:
    """Return how accurate we were."""
    outcomes = deps.queue.outcomes(_MAX_OUTCOMES)
    return render(
        request,
        "accuracy.html",
        viewer,
        total=make_row("all", outcomes),
        coverage=measure_coverage(outcomes),
        by_gpu=group_rows(outcomes, lambda outcome: outcome.gpu)[:_MAX_GROUPS],
        by_family=group_rows(outcomes, lambda outcome: family_of(outcome.model))[:_MAX_GROUPS],
        by_model=group_rows(outcomes, lambda outcome: outcome.model)[:_MAX_GROUPS],
        members=_members(outcomes),
        address=request.url.netloc,
        published=PUBLISHED,
        promised=PROMISED,
    )


def _members(outcomes: Sequence[MeasuredOutcome]) -> dict[str, list[str]]:
    """Return the models of each family."""
    members: dict[str, list[str]] = {}
    for model in sorted({outcome.model for outcome in outcomes}):
        members.setdefault(family_of(model), []).append(model)
    return members


@accuracy_page.get("/points")
def read_points(deps: Deps, viewer: DataViewer) -> Response:
    """Return predicted and measured peaks, for the chart; the newest."""
    return JSONResponse(chart_points(deps.queue.outcomes(_MAX_POINTS)))


def chart_points(outcomes: Sequence[MeasuredOutcome]) -> dict[str, Any]:
    """Return the points of the chart, those within the bound and those beyond it."""
    lived = [outcome for outcome in outcomes if not outcome.ran_out]
    kinds: dict[str, list[list[int]]] = {"within": [], "beyond": []}
    for outcome in lived:
        point = [outcome.measured_peak_bytes, outcome.predicted_peak_bytes]
        kinds["within" if outcome.is_within else "beyond"].append(point)
    return kinds
