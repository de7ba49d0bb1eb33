"""A job that has ended on a node -> a line for its owner, and an outcome for memgate.

The line is written to the end of the job's output, by a process of the owner's: root follows no
path of a user. Outcomes wait in files while memgate is away, and the next epilog sends them.
"""

from __future__ import annotations

import os
import pwd
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from memgate.client.clients import Client
from memgate.client.errors import AnswerError, ClientError
from memgate.errors import MemgateError
from memgate_service.admission.slurm.commands import run
from memgate_service.admission.slurm.measuring.nvml import NvmlError, try_nvml
from memgate_service.admission.slurm.measuring.peaks import (
    Measured,
    Places,
    end,
    make_directory,
    read_gpus,
)
from memgate_service.admission.slurm.outcomes import NOT_NOW
from memgate_service.admission.slurm.records import Record, read_comment
from memgate_service.admission.slurm.usage import describe_use

#: a program that looks every second may miss the peak of a job that is shorter than so many looks
_MIN_LOOKS = 30

#: an output on a file system that hangs must not keep a node from its next job
_WRITE_SECONDS = 5.0
_APPEND = '[ -f "$0" ] && exec cat >> "$0"'


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """An outcome that memgate has not got yet."""

    job: int
    estimate: str
    peak_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedJob:
    """What Slurm says about a job in its epilog."""

    job_id: int
    uid: int
    #: this node has the batch script: of several nodes, one reports
    is_first_node: bool
    is_success: bool
    #: None if memgate has not judged it
    record: Record | None
    output: str


def read_ended(variables: Mapping[str, str], shown: str) -> EndedJob:
    """Read the epilog's variables, and what ``scontrol show job`` says."""
    fields = dict(re.findall(r"^\s*(AdminComment|BatchHost|StdOut)=(.*?)\s*$", shown, re.MULTILINE))
    comment = read_comment(fields.get("AdminComment", ""))
    host = fields.get("BatchHost", "")
    return EndedJob(
        job_id=int(variables["SLURM_JOB_ID"]),
        uid=int(variables["SLURM_JOB_UID"]),
        is_first_node=host in ("", variables.get("SLURMD_NODENAME", host)),
        is_success=variables.get("SLURM_JOB_EXIT_CODE", "0") == "0",
        record=comment.record if comment else None,
        output=fields.get("StdOut", ""),
    )


def ask_slurm(job_id: int) -> str:
    """Ask slurmctld about a job: one question for each judged job with a GPU."""
    return run(["scontrol", "show", "job", str(job_id)])


def describe(job: EndedJob, measured: Measured) -> str:
    """Return the line for the job's owner; empty if memgate has not judged it."""
    if job.record is None or not job.record.gpu:
        return ""
    line = describe_use(
        job.job_id, job.record, measured.peak_bytes, is_least=bool(measured.num_looks)
    )
    return line + (f" ({measured.problem})" if measured.problem else "")


def tell_owner(job: EndedJob, line: str) -> str:
    """Write a line to the end of a job's output, as its owner; return why that could not be."""
    try:
        user = pwd.getpwuid(job.uid)
        is_other = user.pw_uid != os.geteuid()
        ran = subprocess.run(
            ["/bin/sh", "-c", _APPEND, job.output],
            input=f"memgate: {line}\n",
            text=True,
            capture_output=True,
            timeout=_WRITE_SECONDS,
            check=False,
            cwd="/",
            user=user.pw_uid if is_other else None,
            group=user.pw_gid if is_other else None,
            extra_groups=os.getgrouplist(user.pw_name, user.pw_gid) if is_other else None,
        )
    except (KeyError, OSError, subprocess.SubprocessError) as error:
        return f"{job.output}: {error}"
    return "" if ran.returncode == 0 else f"{job.output} could not be written: {ran.stderr.strip()}"


def find_outcome(job: EndedJob, measured: Measured) -> Waiting | None:
    """Return what to report; None if the figure may not be the job's peak."""
    is_sure = not measured.num_looks or measured.num_looks >= _MIN_LOOKS
    record = job.record
    if record is None or not record.id or not (job.is_first_node and job.is_success):
        return None
    if not measured.peak_bytes or not is_sure:
        return None
    return Waiting(job=job.job_id, estimate=record.id, peak_bytes=measured.peak_bytes)


class Outbox:
    """Outcomes of this node that memgate has not got yet."""

    def __init__(self, directory: Path, log: Callable[[str], None]) -> None:
        self._directory = directory
        self._log = log

    def add(self, outcome: Waiting) -> None:
        """Keep an outcome until it is sent."""
        path = self._directory / f"{outcome.job}.outcome"
        path.write_bytes(msgspec.json.encode(outcome))

    def send(self, client: Client) -> int:
        """Send what waits; return how much was sent. What fails now is sent by a later epilog."""
        num_sent = 0
        for path, outcome in self._read_all():
            try:
                client.report_outcome(outcome.estimate, outcome.peak_bytes)
                num_sent += 1
            except AnswerError as error:
                if error.status in NOT_NOW:
                    self._log(f"outcomes wait: {error.message}")
                    return num_sent
                self._log(f"job {outcome.job}: not accepted: {error.message}")
            except ClientError as error:
                self._log(f"outcomes wait: {error.message}")
                return num_sent
            path.unlink(missing_ok=True)
        return num_sent

    def _read_all(self) -> Iterator[tuple[Path, Waiting]]:
        for path in sorted(self._directory.glob("*.outcome")):
            try:
                yield path, msgspec.json.decode(path.read_bytes(), type=Waiting)
            except (OSError, msgspec.MsgspecError):
                path.unlink(missing_ok=True)


def end_job(
    variables: Mapping[str, str],
    directory: Path,
    connect: Callable[[], Client],
    log: Callable[[str], None],
    *,
    is_told: bool = True,
    ask: Callable[[int], str] = ask_slurm,
) -> str:
    """Measure a job in its epilog, tell its owner and memgate; return the line."""
    if not read_gpus(variables):
        return ""
    try:
        make_directory(directory)
        number = int(variables["SLURM_JOB_ID"])
        with try_nvml() as (devices, problem):
            measured = end(Places(directory, number), devices, problem)
        job = read_ended(variables, ask(number))
        line = describe(job, measured)
        if line and is_told and job.is_first_node and (problem := tell_owner(job, line)):
            log(f"job {number}: its owner could not be told: {problem}")
        if outcome := find_outcome(job, measured):
            outbox = Outbox(directory, log)
            outbox.add(outcome)
            with connect() as client:
                outbox.send(client)
        return line
    except (MemgateError, OSError, KeyError, ValueError, NvmlError) as error:
        log(f"what the job took is not known: {error}")
        return ""
