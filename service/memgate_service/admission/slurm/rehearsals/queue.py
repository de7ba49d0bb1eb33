"""``squeue --json`` -> jobs that wait for a rehearsal, and companions that rehearse them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from memgate_service.admission.slurm.commands import (
    SlurmError,
    SlurmJob,
    read_job,
    read_number,
    read_states,
)
from memgate_service.admission.slurm.records import COMPANION, REHEARSAL

_OPEN = {"PENDING", "RUNNING", "SUSPENDED", "CONFIGURING"}


class Result(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a companion leaves in its own Comment, as its owner can write it."""

    estimate: str = ""
    """The id of memgate's answer about the timeline; empty if there is none."""
    why: str = ""
    """Why there is none."""
    code: str = ""
    """The digest of the job's files, before and after; empty if they changed or are too many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitingJob:
    """A job that is to be rehearsed, or is being."""

    job: SlurmJob
    uid: int
    gid: int
    directory: str
    #: whose script it has: an array's tasks share one
    script_of: int
    num_tasks: int
    num_nodes: int
    tasks_per_node: int
    #: the number of its first task, if it is an array
    array_task: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Companion:
    """The job that rehearses another one."""

    job_id: int
    uid: int
    #: the job that it is for
    of: int
    is_open: bool
    result: Result | None
    #: the key that its result is cached under; empty if it is not
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """What matters of Slurm's queue."""

    waiting: list[WaitingJob]
    companions: list[Companion]


def read_rehearsals(text: str) -> Queue:
    """Read the queue.

    Raises:
        SlurmError: if the text is not squeue's.
    """
    try:
        jobs = json.loads(text)["jobs"]
        return Queue(waiting=[*_waiting(jobs)], companions=[*_companions(jobs)])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SlurmError(f"squeue --json printed something unexpected: {error!r:.200}") from None


def _waiting(jobs: list[dict[str, Any]]) -> Iterator[WaitingJob]:
    for said in jobs:
        job = read_job(said)
        if job is None or job.record.decision != REHEARSAL:
            continue
        if not (_OPEN & read_states(said) or (job.has_ended and job.had_node)):
            continue  # canceled by its owner
        yield WaitingJob(
            job=job,
            uid=read_number(said["user_id"]),
            gid=read_number(said["group_id"]),
            directory=str(said.get("current_working_directory") or ""),
            script_of=read_number(said.get("array_job_id") or 0) or job.job_id,
            num_tasks=read_number(said.get("tasks") or 1) or 1,
            num_nodes=read_number(said.get("node_count") or 1) or 1,
            tasks_per_node=read_number(said.get("tasks_per_node") or 0),
            array_task=_first_task(said),
        )


def _first_task(said: dict[str, Any]) -> str:
    tasks = re.match(r"\d+", str(said.get("array_task_string") or ""))
    return tasks[0] if tasks else ""


def _companions(jobs: list[dict[str, Any]]) -> Iterator[Companion]:
    for said in jobs:
        job = read_job(said)
        if job is None or job.record.decision != COMPANION:
            continue
        yield Companion(
            job_id=job.job_id,
            uid=read_number(said["user_id"]),
            of=job.record.of,
            is_open=bool(_OPEN & read_states(said)),
            result=_read_result(said.get("comment")),
            key=job.record.key,
        )


def _read_result(comment: object) -> Result | None:
    try:
        return msgspec.json.decode(comment, type=Result) if isinstance(comment, str) else None
    except (msgspec.MsgspecError, UnicodeError):
        return None
