"""``/``, the overview; ``/ui/events`` and ``/ui/watch``, which keep pages live."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from typing import Annotated

import anyio.to_thread
from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse

from memgate.contract import UnknownJobError, WorkKind
from memgate.gpus import CATALOGUE
from memgate.schemas import JOB_ID
from memgate_service.dashboard import decisions
from memgate_service.dashboard.decisions import PAGE_SIZE, find_decisions
from memgate_service.dashboard.links import open_data
from memgate_service.dashboard.live import Hub
from memgate_service.dashboard.overview import OTHERS_PARTS, OverviewReader, render_decisions
from memgate_service.dashboard.rendering import render
from memgate_service.dashboard.viewers import DataViewer, LinkViewer, PageViewer, Viewer
from memgate_service.http.dependencies import Dependencies, Deps
from memgate_worker.queue.client import HistoryEntry, describe_question

overview_page = APIRouter(include_in_schema=False)

#: jobs that a page may wait for
_MAX_WATCHED = 32

Word = Annotated[str, Query(max_length=100)]


@overview_page.get("/")
def read_overview(
    request: Request,
    deps: Deps,
    viewer: PageViewer,
    outcome: Word = "",
    kind: Word = "",
    gpu: Word = "",
    q: Word = "",
    advice: bool = False,
    offset: Annotated[int, Query(ge=0, le=20_000)] = 0,
) -> Response:
    """Return the overview, with the decisions that match the search."""
    reader: OverviewReader = request.app.state.overview
    seen = reader.read()
    query = decisions.Query(outcome=outcome, kind=kind, gpu=gpu, text=q, with_advice=advice)
    is_newest = query.is_plain and offset == 0 and viewer.sees_all
    if is_newest:
        rows, has_more = seen.parts["decisions"], seen.has_more
    else:
        found, has_more = find_decisions(_history(deps, viewer), query, offset)
        rows = render_decisions(found, is_search=not query.is_plain)
    return render(
        request,
        "overview.html",
        viewer,
        seen=seen,
        rows=rows,
        query=query,
        is_newest=is_newest,
        older=query.link(offset + PAGE_SIZE) if has_more else None,
        newer=query.link(max(0, offset - PAGE_SIZE)) if offset else None,
        gpus=sorted(CATALOGUE),
        kinds=list(WorkKind),
    )


def _history(deps: Dependencies, viewer: Viewer) -> Iterator[HistoryEntry]:
    """Yield finished jobs, the newest first: everybody's, or the viewer's own questions."""
    tags = viewer.actor.tags
    if tags is None:
        yield from deps.queue.history()
        return
    for record in deps.queue.questions.newest(tags):
        entry = describe_question(record)
        if entry is not None:
            yield entry


@overview_page.get("/ui/events")
async def read_events(request: Request, viewer: DataViewer) -> Response:
    """Send what changes on the overview."""
    hidden = frozenset() if viewer.sees_all else OTHERS_PARTS
    return _stream(request.app.state.hub, frozenset(), hidden)


@overview_page.get("/ui/watch")
async def watch_jobs(
    request: Request,
    deps: Deps,
    viewer: LinkViewer,
    job: Annotated[
        list[Annotated[str, Query(pattern=JOB_ID)]], Query(min_length=1, max_length=_MAX_WATCHED)
    ],
) -> Response:
    """Send the progress of some jobs."""
    await anyio.to_thread.run_sync(_check_all, deps, job, viewer)
    return _stream(request.app.state.hub, frozenset(job), frozenset())


def _check_all(deps: Dependencies, question_ids: list[str], viewer: Viewer) -> None:
    """Refuse to watch what its viewer may not see; what no longer exists has no state to show."""
    for question_id in question_ids:
        try:
            open_data(deps, question_id, viewer)
        except UnknownJobError:
            continue


def _stream(hub: Hub, jobs: frozenset[str], hidden: frozenset[str]) -> Response:
    stack = ExitStack()
    stream = stack.enter_context(hub.stream(jobs, hidden))  # refused before anything is sent

    async def pieces() -> AsyncIterator[bytes]:
        with stack:
            async for piece in stream.pieces():
                yield piece

    headers = {"X-Accel-Buffering": "no"}  # so that proxies pass on each piece at once
    return StreamingResponse(pieces(), media_type="text/event-stream", headers=headers)
