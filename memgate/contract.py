"""What service and worker say to each other: work, and what became of it. JSON, no rq, no torch.

A run's id is a digest of its work. So the same question asked again while it is being answered
joins the run, and asked later it finds the answer. Each time it is asked it is a question of its
own, with an id that cannot be guessed and an owner: that id is what callers see.
"""

from __future__ import annotations

import hashlib
import json
from datetime import datetime
from enum import StrEnum
from typing import Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from memgate.calibration import digest_calibration
from memgate.errors import Fault, InputError, MemgateError, PassingError
from memgate.gpus import GpuRequest, GpuTarget, digest_own_gpus
from memgate.jobspec import JobSpec
from memgate.max_batch import MaxBatch
from memgate.mistakes import Mistake
from memgate.owner import Owner
from memgate.report import Estimate, Fit
from memgate.version import __version__

EngineName = Literal["auto", "phantom", "profile"]

#: of a digest, in hexadecimal: enough to rule out collisions
_ID_LENGTH = 32

#: looking it up takes longer than the rest of making an id
_VERSION = __version__


class WorkKind(StrEnum):
    """The kinds of questions."""

    ESTIMATE = "estimate"
    """Does it fit on this GPU?"""
    FIT = "fit"
    """On which GPUs of the catalogue does it fit?"""
    MAX_BATCH = "max-batch"
    """What is the largest batch that fits?"""


class Priority(StrEnum):
    """Which questions come first when there is a queue."""

    HIGH = "high"
    NORMAL = "normal"
    LOW = "low"


class Asker(StrEnum):
    """Who asked a question; only callers' questions are counted as decisions."""

    CALLER = "caller"
    DASHBOARD = "dashboard"
    """A page that wants to say what would make a job fit."""
    GATE = "gate"
    """A refusal at the gate of a cluster that wants to say the same."""


class JobState(StrEnum):
    """How far a job has come."""

    QUEUED = "queued"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELED = "canceled"

    @property
    def is_open(self) -> bool:
        """There will still be an answer."""
        return self in (JobState.QUEUED, JobState.RUNNING)


class Work(BaseModel):
    """A question: a job or a trace, and a GPU unless it is about all of them."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    kind: WorkKind
    job: JobSpec | None = None
    trace: str | None = None
    """Digest of an uploaded trace, memory snapshot or timeline file: its name in the store."""
    device: int | None = None
    """Of a snapshot; None: all of them, and the worst decides."""
    gpu: GpuRequest | None = None
    engine: EngineName = "auto"
    allocator: str = ""
    """For an upload; a job has its own."""
    inference: bool = False
    """The question about a trace is about inference; otherwise it is about training."""

    def id(self) -> str:
        """Return the digest of everything that the answer depends on: the id of its run."""
        document = self.model_dump(mode="json", by_alias=True) | {"memgate": _VERSION}
        if own := digest_own_gpus():  # answers name every GPU on which a job fits
            document["gpus"] = own
        if calibration := digest_calibration():
            document["calibration"] = calibration
        canonical = json.dumps(document, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()[:_ID_LENGTH]

    @property
    def target(self) -> GpuTarget:
        """The GPU that the question is about.

        Raises:
            InputError: if it names none, or one that is not in the catalogue.
        """
        if self.gpu is None:
            raise InputError("gpu is missing: name one of the catalogue, or describe it")
        return self.gpu.target()


#: of an unforeseen error: a bug of ours
INTERNAL = "INTERNAL"


class Failure(BaseModel):
    """Why there is no answer."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    code: str
    message: str
    fault: Fault
    """Whose it is, and so what to do about it."""
    mistakes: tuple[Mistake, ...] = ()
    """What is wrong, field by field, where that is known."""

    @classmethod
    def of(cls, error: MemgateError) -> Failure:
        """Keep the parts of an error that can outlive the process."""
        return cls(
            code=error.code, message=error.message, fault=error.fault, mistakes=error.mistakes
        )


#: what an answer is
Result = Estimate | Fit | MaxBatch

_RESULTS: dict[WorkKind, type[Result]] = {
    WorkKind.ESTIMATE: Estimate,
    WorkKind.FIT: Fit,
    WorkKind.MAX_BATCH: MaxBatch,
}


class JobRecord(BaseModel):
    """A job in its current state."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    id: str
    kind: WorkKind
    state: JobState
    priority: Priority
    asked_by: Asker = Asker.CALLER
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None
    attempts: int = 0
    """How often a worker started on it; more than once if workers were lost."""
    worker: str | None = None
    work: Work
    result: Result | None = None
    """The answer; ``kind`` says which of the three it is."""
    error: Failure | None = None
    identity: str = ""
    """Digest of what made the answer: versions of memgate and its engines, the runtime's libraries
    and cuDNN. An answer is given again only while workers of this identity are there, or none."""
    advice_until: datetime | None = None
    """Until then, a worker is looking for a batch that fits, to add it to ``result``. It moves this
    on while it looks, so a time in the past means that the worker was lost."""
    owner: Owner = Owner()
    """Who asked."""
    asked_at: datetime | None = None
    """When; others may have asked the same before, and ``created_at`` is when the first of them
    did."""
    run: str = Field(default="", exclude=True)
    """Id of the run, where ``id`` is that of a question about it."""
    question: str = Field(default="", exclude=True)
    """Id of the first question about it, where ``id`` is that of a run."""

    @field_validator("result", mode="before")
    @classmethod
    def _parse_result(cls, value: Any, info: ValidationInfo) -> Any:
        """Read an answer, JSON text or decoded JSON, as the type that its kind says.

        Trying one type after another would be slower.
        """
        kind = info.data.get("kind")
        if value is None or kind is None:
            return value
        if isinstance(value, str):
            return _RESULTS[kind].model_validate_json(value)
        return _RESULTS[kind].model_validate(value)

    @property
    def estimate(self) -> Estimate | None:
        """The answer, if there is one and it is an estimate."""
        return self.result if isinstance(self.result, Estimate) else None

    def with_page(self, public_url: str) -> Self:
        """Add to the answer which job gave it, and where a person can look at it."""
        if self.result is None:
            return self
        where = {"id": self.id, "page": f"{public_url}{page_path(self.id)}"}
        return self.model_copy(update={"result": self.result.model_copy(update=where)})

    @property
    def run_id(self) -> str:
        """Id of the run that answers it, which all who ask the same share."""
        return self.run or self.id

    def is_advice_pending(self, now: datetime) -> bool:
        """Say whether advice may still be added to the answer."""
        return self.advice_until is not None and now < self.advice_until


def page_path(job_id: str) -> str:
    """Return the path of a job's page on a server."""
    return f"/ui/jobs/{job_id}"


class UnknownJobError(InputError):
    """There is no such job, or it ended long ago."""

    code = "UNKNOWN_JOB"


class NotYoursError(InputError):
    """Somebody else has asked it."""

    code = "NOT_YOURS"


class UploadsFullError(PassingError):
    """Uploads take as much as the operator allows."""

    code = "UPLOADS_FULL"


class NotConfirmedError(PassingError):
    """No replica of the queue's server has confirmed that it has the question."""

    code = "NOT_CONFIRMED"


class QueueFullError(PassingError):
    """More jobs are waiting than the operator allows."""

    code = "QUEUE_FULL"
