"""The requests that a client makes, as values: nothing is sent here."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from pydantic import BaseModel

from memgate.audit import AuditBatch, AuditEntry
from memgate.contract import EngineName, JobRecord, JobState, WorkKind
from memgate.errors import InputError
from memgate.file_kinds import HEAD_BYTES, FileKind, find_file_kind
from memgate.given_files import open_given_file, read_lengths
from memgate.gpus import GpuRequest
from memgate.jobspec import DEVICE_OF_A_JOB, INFERENCE_OF_A_JOB, JobSpec
from memgate.owner import OWNER_HEADERS, Owner
from memgate.schemas import JobList, OutcomeCreate
from memgate.spec_text import read_job_bytes

#: how long one request may wait for an answer; then it is asked again
MAX_POLL_SECONDS = 30.0
#: what a request takes besides waiting for the answer
_SLACK_SECONDS = 30.0

Job = JobSpec | Mapping[str, Any]
Gpu = str | GpuRequest | Mapping[str, Any]
#: a job, a file that describes one (a path), or the content of a trace
Asked = Job | str | Path | bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpCall:
    """A request to make."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes | None = None
    data: dict[str, str] | None = None
    files: dict[str, tuple[str, bytes]] | None = None
    params: dict[str, str] = field(default_factory=dict)
    timeout_seconds: float = _SLACK_SECONDS
    #: asking twice is like asking once
    is_repeatable: bool = True

    def waiting(self, seconds: float) -> HttpCall:
        """Return the same request, willing to wait."""
        whole = max(0, int(seconds))
        headers = {name: text for name, text in self.headers.items() if name != "Prefer"}
        if whole:
            headers["Prefer"] = f"wait={whole}"
        return replace(self, headers=headers, timeout_seconds=whole + _SLACK_SECONDS)


def ask_for(call: HttpCall, owner: Owner | None) -> HttpCall:
    """Ask for somebody else; the key needs the right to."""
    named = {} if owner is None else owner.model_dump(exclude={"key"}, exclude_defaults=True)
    headers = {OWNER_HEADERS[field]: quote(text, safe=" ") for field, text in named.items()}
    return replace(call, headers=call.headers | headers)


def ask_estimate(
    asked: Asked,
    gpu: Gpu,
    *,
    engine: EngineName,
    allocator: str,
    device: int | None = None,
    inference: bool = False,
) -> HttpCall:
    """Ask about a job, or the job of an upload; a file's content says which."""
    name, asked = _open(asked)
    if isinstance(asked, bytes):
        request = {"gpu": _plain(gpu), "allocator": allocator}
        request |= {} if device is None else {"device": device}
        request |= {"inference": True} if inference else {}
        return _upload("/estimate", name, asked, request)
    if inference:
        raise InputError(INFERENCE_OF_A_JOB)
    if device is not None:
        raise InputError(DEVICE_OF_A_JOB.format(device=device))
    if allocator:
        raise InputError(_ALLOCATOR_OF_A_JOB)
    return _question("/estimate", {"job": _plain_job(asked), "gpu": _plain(gpu), "engine": engine})


#: what is wrong with giving the allocator's settings twice
_ALLOCATOR_OF_A_JOB = "allocator is for uploads; a job says it itself, in 'allocator'"


def _open(asked: Asked) -> tuple[str, Job | bytes]:
    """Return what is asked about, read if it is a file, and the file's name."""
    if isinstance(asked, str | Path):
        return Path(asked).name, _read_file(Path(asked))
    return "upload", asked


def _read_file(path: Path) -> JobSpec | bytes:
    """Return the job spec that is in a file, or the file if it is an upload."""
    with open_given_file(path) as stream:
        content = stream.read()
        if find_file_kind(content[:HEAD_BYTES]) is not FileKind.JOB_SPEC:
            return content
        return read_job_bytes(content, lambda document: read_lengths(document, path.parent))


#: what a server calls each kind of upload
_PARTS = {FileKind.SNAPSHOT: "snapshot", FileKind.TIMELINE: "timeline"}


def _upload(path: str, name: str, content: bytes, request: Any) -> HttpCall:
    part = _PARTS.get(find_file_kind(content[:HEAD_BYTES]), "trace")
    return HttpCall(
        method="POST",
        path=path,
        data={"request": json.dumps(request)},
        files={part: (name, content)},
    )


def ask_fit(asked: Asked, *, engine: EngineName, allocator: str = "") -> HttpCall:
    """Ask about every GPU, for a job or a timeline file."""
    name, asked = _open(asked)
    if isinstance(asked, bytes):
        return _upload("/fit", name, asked, {"allocator": allocator})
    if allocator:
        raise InputError(_ALLOCATOR_OF_A_JOB)
    return _question("/fit", {"job": _plain_job(asked), "engine": engine})


def ask_max_batch(job: Job, gpu: Gpu, *, engine: EngineName) -> HttpCall:
    """Ask for the largest batch."""
    return _question("/max-batch", {"job": _plain_job(job), "gpu": _plain(gpu), "engine": engine})


def job_path(job_id: str, part: str = "") -> str:
    """Say where a job is."""
    return f"/jobs/{quote(job_id, safe='')}{part}"


def read_job(job_id: str, wait: float = 0.0) -> HttpCall:
    """Ask how far a job is."""
    return HttpCall(method="GET", path=job_path(job_id)).waiting(min(wait, MAX_POLL_SECONDS))


def report(outcome: OutcomeCreate) -> HttpCall:
    """Report what a job really took."""
    call = _question("/outcomes", outcome.model_dump(exclude_none=True))
    return replace(call, is_repeatable=False)  # each counts


def record_decisions(entries: Sequence[AuditEntry]) -> HttpCall:
    """Record what a gate decided. Each record has an id: sent twice, it is stored once."""
    batch = AuditBatch(entries=list(entries))
    return _question("/audit", batch.model_dump(mode="json", exclude_defaults=True))


def _question(path: str, document: Any) -> HttpCall:
    headers = {"Content-Type": "application/json"}
    return HttpCall(
        method="POST", path=path, headers=headers, content=json.dumps(document).encode()
    )


def _plain_job(job: Job) -> Any:
    """Return a job with the lengths of the files that it names: a server reads none."""
    return read_lengths(_plain(job), Path())


def _plain(value: Job | Gpu) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", by_alias=True, exclude_unset=True)
    return value if isinstance(value, str) else dict(value)


class Pages:
    """The pages of a list; a job that moves to the next page in the meantime is seen once."""

    def __init__(self, *, state: JobState | None, kind: WorkKind | None) -> None:
        self._asked = {"state": state, "kind": kind}
        self._seen: set[str] = set()
        self.offset: int | None = 0

    def call(self) -> HttpCall:
        """Ask for the next page."""
        params = {name: str(value) for name, value in self._asked.items() if value is not None}
        return HttpCall(method="GET", path="/jobs", params=params | {"offset": str(self.offset)})

    def take(self, page: JobList) -> list[JobRecord]:
        """Turn the page; return what is new on it."""
        fresh = [record for record in page.jobs if record.id not in self._seen]
        self._seen.update(record.id for record in fresh)
        self.offset = page.next_offset
        return fresh
