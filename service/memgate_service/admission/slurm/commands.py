"""Slurm's own commands -> jobs, and back. No shell, and no user's text as an option."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from memgate.errors import MemgateError
from memgate_service.admission.core.rules import Subject
from memgate_service.admission.slurm.records import AdminComment, Record, read_comment

_TIMEOUT_SECONDS = 60.0

#: there is something left to decide about jobs in these states
_OPEN_STATES = {"PENDING", "RUNNING", "SUSPENDED"}
#: and something to record about these; Slurm forgets them after ``MinJobAge``
_ENDED_STATES = {
    *("COMPLETING", "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL"),
    *("PREEMPTED", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY"),
}


class SlurmError(MemgateError):
    """A Slurm command failed."""

    code = "SLURM_FAILED"


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """A job that memgate has a record of."""

    job_id: int
    submitted_at: float
    #: it does not start, whoever holds it
    is_held: bool
    #: an administrator holds it; memgate's own hold looks like the owner's
    is_admin_held: bool = False
    comment: AdminComment
    #: it has not started
    is_pending: bool = True
    #: Slurm changes nothing about it any more, not even its AdminComment
    has_ended: bool = False
    #: it had a node; what its owner cancels before that has not
    had_node: bool = False
    #: who submitted it, and where to
    subject: Subject = field(default_factory=Subject)
    job_name: str = ""
    #: of the first part of a heterogeneous job; 0 for other jobs
    het_job_id: int = 0
    het_job_offset: int = 0

    @property
    def name(self) -> str:
        """What ``scontrol`` calls it. The id of a first part alone would mean all parts."""
        return f"{self.het_job_id}+{self.het_job_offset}" if self.het_job_id else str(self.job_id)

    @property
    def record(self) -> Record:
        """What memgate has noted."""
        return self.comment.record


def read_queue(text: str) -> Iterator[SlurmJob]:
    """Yield the jobs of ``squeue --json`` that memgate has a record of.

    Raises:
        SlurmError: if the output is something else.
    """
    try:
        for said in json.loads(text)["jobs"]:
            is_ours = (_OPEN_STATES | _ENDED_STATES) & read_states(said)
            if is_ours and (job := read_job(said)) is not None:
                yield job
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SlurmError(f"squeue --json printed something unexpected: {error!r:.200}") from None


def read_job(said: dict[str, Any]) -> SlurmJob | None:
    """Read one job of ``squeue --json``; None if memgate has no record of it."""
    comment = read_comment(said.get("admin_comment"))
    if comment is None:
        return None
    return SlurmJob(
        job_id=int(said["job_id"]),
        submitted_at=float(read_number(said["submit_time"])),
        is_held=read_number(said["priority"]) == 0,
        is_admin_held=said.get("state_reason") == "JobHeldAdmin",
        is_pending="PENDING" in read_states(said),
        has_ended=bool(_ENDED_STATES & read_states(said)),
        had_node=bool(said.get("nodes")),
        subject=_subject(said),
        job_name=str(said.get("name") or ""),
        comment=comment,
        het_job_id=read_number(said.get("het_job_id", 0)),
        het_job_offset=read_number(said.get("het_job_offset", 0)),
    )


def read_states(said: dict[str, Any]) -> set[str]:
    """Return the states of a job: one, or several from 23.02 on."""
    states = said["job_state"]
    return set(states if isinstance(states, list) else [states])


def _subject(job: dict[str, Any]) -> Subject:
    """Read who submitted a job, and where to, as policies name it."""
    return Subject(
        user=str(job.get("user_name") or job.get("user_id") or ""),
        group=[str(read_number(job.get("group_id", 0)))],
        account=str(job.get("account") or ""),
        qos=str(job.get("qos") or ""),
        partition=[name for name in str(job.get("partition") or "").split(",") if name],
        kind="job",
    )


def read_number(value: Any) -> int:
    """Read a number as versions from 23.02 on write it, or as those before."""
    return int(value["number"] if isinstance(value, dict) else value)


class SlurmCommands:
    """Slurm, through its commands; for a user who may administer it."""

    def jobs(self) -> list[SlurmJob]:
        """Return the jobs that memgate has a record of, also those that ended a while ago."""
        return list(read_queue(run(["squeue", "--json", "--states=all"])))

    def release(self, job: SlurmJob) -> None:
        """Let a held job start; one with a timer, when its owner wanted it to."""
        if not job.record.timer:
            run(["scontrol", "release", job.name])
            return
        is_later = job.record.begin > time.time()
        start = datetime.fromtimestamp(job.record.begin).isoformat() if is_later else "now"
        run(["scontrol", "update", f"JobId={job.name}", f"StartTime={start}"])

    def hold(self, job: SlurmJob) -> None:
        """Keep a job from starting, until an administrator releases it."""
        run(["scontrol", "hold", job.name])

    def notify(self, job: SlurmJob, message: str) -> None:
        """Write to the output of a job that runs."""
        run(["scontrol", "notify", job.name, message])

    def cancel(self, job: SlurmJob) -> None:
        """Cancel a job, with all its parts: Slurm cannot cancel one part alone."""
        run(["scancel", str(job.het_job_id or job.job_id)])

    def note(self, job: SlurmJob, record: Record) -> None:
        """Replace memgate's record of a job; notes of other programs stay."""
        comment = job.comment.with_record(record).text()
        run(["scontrol", "update", f"JobId={job.name}", f"AdminComment={comment}"])


def run(command: Sequence[str]) -> str:
    """Run one of Slurm's commands.

    Raises:
        SlurmError: with what it printed.
    """
    try:
        ran = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SlurmError(f"{command[0]} did not end within {_TIMEOUT_SECONDS:g} s") from None
    except OSError as error:
        raise SlurmError(f"{command[0]} cannot be run: {error.strerror}") from None
    if ran.returncode != 0:
        said = (ran.stderr or ran.stdout).strip().splitlines() or ["nothing"]
        raise SlurmError(f"{command[0]} failed: {said[0]:.300}")
    return ran.stdout
