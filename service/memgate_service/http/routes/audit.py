"""``/audit``: what gates decided, about whose jobs. Gates write it, and administrators read it."""

from __future__ import annotations

import csv
from collections import Counter
from io import StringIO
from typing import Annotated, Literal

import anyio.to_thread
from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict

from memgate.audit import AuditBatch, AuditEntry
from memgate_service.http.access import needs
from memgate_service.http.bodies import JSON, json_body, read_json
from memgate_service.http.decisions import log_decision
from memgate_service.http.dependencies import Deps
from memgate_service.http.openapi import PROBLEMS, WRONG_TYPE, Responses, body_of
from memgate_worker.queue.keys import Right

audit = APIRouter(tags=["audit"], prefix="/audit", responses=PROBLEMS)

_WRITES = [Depends(needs(Right.ON_BEHALF))]
_READS = [Depends(needs(Right.ADMIN))]

Text = Annotated[str, Query(max_length=64, description="Only records with exactly this.")]
Since = Annotated[float, Query(ge=0, description="Not before, in seconds since 1970.")]
Until = Annotated[float, Query(ge=0, description="Not after, in seconds since 1970.")]
Field = Literal["user", "account", "namespace", "partition", "decision", "kind", "rule", "gpu"]

#: later than anything
_EVER = 1e11


class AuditPage(BaseModel):
    """Some records, the newest first."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    entries: list[AuditEntry]
    """The records."""
    next: str
    """What to give as `start` for the next page; empty at the end."""


class AuditStored(BaseModel):
    """What became of records."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    stored: int
    """How many were new."""


class AuditCount(BaseModel):
    """How many records there are, by some field."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    counts: dict[str, int]
    """The most frequent values first."""


@audit.post(
    "",
    status_code=201,
    responses=WRONG_TYPE,
    openapi_extra=body_of(AuditBatch),
    dependencies=_WRITES,
)
async def record_decisions(request: Request, deps: Deps) -> AuditStored:
    """Record what a gate decided; a record that is sent twice is stored once."""
    batch = read_json(AuditBatch, await json_body(request))
    stored = await anyio.to_thread.run_sync(deps.queue.audit.add, batch.entries)
    for entry in batch.entries:
        log_decision(entry)
    return AuditStored(stored=stored)


_CSV: Responses = {200: {"content": {"text/csv": {"schema": {"type": "string"}}}}}


@audit.get("", response_model=AuditPage, responses=_CSV, dependencies=_READS)
def list_decisions(
    deps: Deps,
    since: Since = 0,
    until: Until = _EVER,
    user: Text = "",
    account: Text = "",
    namespace: Text = "",
    partition: Text = "",
    decision: Text = "",
    done: Text = "",
    mode: Text = "",
    start: Annotated[
        str, Query(pattern=r"^([0-9.e+]+:[0-9A-Za-z-]+)?$", description="`next`.")
    ] = "",
    limit: Annotated[int, Query(ge=1, le=1000, description="At most so many.")] = 100,
    format: Annotated[Literal["json", "csv"], Query(description="What to return.")] = "json",
) -> Response:
    """Return records, the newest first; as CSV, `X-Memgate-Next` has what `next` has in JSON."""
    page = deps.queue.audit.read(
        since=since,
        until=until,
        count=limit,
        start=start,
        user=user,
        account=account,
        namespace=namespace,
        partition=partition,
        decision=decision,
        done=done,
        mode=mode,
    )
    if format == "csv":
        headers = {"X-Memgate-Next": page.next}
        return Response(write_csv(page.entries), media_type="text/csv", headers=headers)
    shown = AuditPage(entries=page.entries, next=page.next)
    return Response(shown.model_dump_json(), media_type=JSON)


@audit.get("/counts", dependencies=_READS)
def count_decisions(
    deps: Deps,
    by: Annotated[Field, Query(description="The field by which to count.")] = "user",
    since: Since = 0,
    until: Until = _EVER,
    decision: Text = "",
    partition: Text = "",
    namespace: Text = "",
) -> AuditCount:
    """Count records by a field: `?by=user&decision=undescribed` shows who describes nothing."""
    found = deps.queue.audit.walk(
        since=since, until=until, decision=decision, partition=partition, namespace=namespace
    )
    counts = Counter(str(getattr(entry, by)) for entry in found)
    return AuditCount(counts=dict(counts.most_common(1000)))


def write_csv(entries: list[AuditEntry]) -> str:
    """Write records as CSV, with a line of names; no text begins a formula in a spreadsheet."""
    text = StringIO()
    names = list(AuditEntry.model_fields)
    rows = csv.DictWriter(text, names, lineterminator="\n")
    rows.writeheader()
    for entry in entries:
        rows.writerow(entry.cells())
    return text.getvalue()
