"""Questions about jobs, and their answers: an estimate, or whose fault it is that there is none.

Question -> KnownAnswer      an estimate
          | MissingAnswer    none, with the ``Fault``: that alone decides what a gate does
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from memgate.client.errors import AnswerError, ClientError, NotDoneError
from memgate.contract import Failure, page_path
from memgate.errors import Fault
from memgate.gpus import GpuRequest
from memgate.jobspec import JobSpec
from memgate.report import Estimate

#: an HTTP status: nearly all of a long request is the description of the job
_TOO_LARGE = 413


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Does this job fit on that GPU? Or: what is the largest batch that does?"""

    key: str
    """Names the question: two with the same key are the same."""
    job: JobSpec | Mapping[str, Any]
    """What runs; as a person wrote it if only the server reads it."""
    gpu: GpuRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAnswer:
    """An estimate."""

    job_id: str
    estimate: Estimate
    is_advice_pending: bool = False
    """A worker is looking for the largest batch, to add it; the decision stands."""

    @property
    def page(self) -> str:
        """Where a person can look at it: a URL, or a path on the server; empty if nobody asked."""
        return self.estimate.page or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MissingAnswer:
    """There is no estimate."""

    fault: Fault
    why: str
    job_id: str = ""
    """The memgate job that has no answer, if there is one."""
    is_being_made: bool = False
    """There will be an answer soon."""

    @property
    def page(self) -> str:
        """Where a person can look at that job; empty if there is none."""
        return page_path(self.job_id) if self.job_id else ""


AnyAnswer = KnownAnswer | MissingAnswer


def being_made(job_id: str) -> MissingAnswer:
    """Say that the job is still running."""
    return MissingAnswer(
        fault=Fault.PASSING,
        why="the estimate is being made",
        job_id=job_id,
        is_being_made=True,
    )


def read_failure(job_id: str, failure: Failure) -> MissingAnswer:
    """Say why a memgate job has no answer. It was run, so a wrong question is its author's."""
    return MissingAnswer(fault=failure.fault, why=failure.message, job_id=job_id)


def read_error(error: ClientError) -> MissingAnswer:
    """Say why a server gave no answer.

    A gate's question has two authors: a mistake in the job is for the user to fix, but the GPU's
    name, the key and the address are the operator's.
    """
    if isinstance(error, NotDoneError):
        return being_made(error.job)
    if not isinstance(error, AnswerError):
        return MissingAnswer(fault=error.fault, why=error.message)
    fault = error.fault
    if fault is Fault.CALLER and not _is_about_the_job(error):
        fault = Fault.OPERATOR
    return MissingAnswer(fault=fault, why=error.message, job_id=error.job or "")


def _is_about_the_job(error: AnswerError) -> bool:
    """It is about a job that was run, a field of it, or the whole request: the rest is ours."""
    if error.job is not None or error.status == _TOO_LARGE:
        return True
    return any(field == "" or field.partition(".")[0] == "job" for field in error.fields)
