"""What Slurm's accounting measured -> ``POST /outcomes``, once for each job.

``read_sacct`` only parses; ``Reporter`` asks sacct and memgate. What was reported is
written to a file (``Ledger``) before it is sent: each outcome counts, so one that may have arrived
is not sent again.

Known limitations: accounting takes samples (``JobAcctGatherFrequency``), so short jobs are left
out; of a task with several GPUs it knows only the sum, so those are left out, too. Slurm measures
``gres/gpumem`` from 23.02 on.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memgate.client.clients import Client
from memgate.client.errors import AnswerError, ClientError
from memgate.errors import InputError
from memgate_service.admission.slurm.commands import run
from memgate_service.admission.slurm.records import Record, read_comment

_SEPARATOR = "\x1f"
_FIELDS = (
    *("JobIDRaw", "State", "ElapsedRaw", "NTasks", "AllocTRES", "TRESUsageInMax"),
    "AdminComment",
)
#: options of sacct by which it writes what is read here
SACCT_FORMAT = (f"--delimiter={_SEPARATOR}", f"--format={','.join(_FIELDS)}")

_ID = re.compile("[0-9a-f]{32}")
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}

#: how far sacct is asked back beyond what was seen: it learns of a job's end a little later
_OVERLAP_SECONDS = 3600.0

#: these jobs have reached their peak; others may have ended before it
_STATES = "COMPLETED,TIMEOUT"

#: HTTP statuses that mean that an outcome was certainly not stored, but may be later: too many
#: requests, a wrong key
NOT_NOW = {401, 403, 429, 503}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A job that has finished and that memgate had judged."""

    job_id: int
    estimate: str
    elapsed_seconds: int
    #: of one process on one GPU, as the driver shows it; None if that was not measured
    peak_bytes: int | None
    #: what was known when it was submitted
    record: Record = field(default_factory=Record, compare=False)


@dataclass(frozen=True, slots=True)
class _Row:
    job_id: int
    is_step: bool
    elapsed_seconds: int
    num_tasks: int
    num_gpus: int
    gpu_bytes: int
    comment: str

    @classmethod
    def read(cls, line: str) -> _Row | None:
        fields = line.split(_SEPARATOR, len(_FIELDS) - 1)
        number = re.match(r"(\d+)(\.?)", fields[0])
        if len(fields) != len(_FIELDS) or number is None:
            return None
        said = dict(zip(_FIELDS, fields, strict=True))
        return cls(
            job_id=int(number[1]),
            is_step=bool(number[2]),
            elapsed_seconds=int(said["ElapsedRaw"] or 0),
            num_tasks=int(said["NTasks"] or 1),
            num_gpus=read_tres(said["AllocTRES"]).get("gres/gpu", 0),
            gpu_bytes=read_tres(said["TRESUsageInMax"]).get("gres/gpumem", 0),
            comment=said["AdminComment"],
        )


def read_tres(text: str) -> dict[str, int]:
    """Read amounts such as ``cpu=2,gres/gpumem=3885M``; what is not a number is left out."""
    amounts = re.finditer(r"([^,=]+)=(\d+(?:\.\d+)?)([KMGTP]?)(?=,|$)", text)
    return {found[1]: int(float(found[2]) * _UNITS[found[3]]) for found in amounts}


def read_sacct(text: str) -> Iterator[Finished]:
    """Yield the jobs of sacct's output that memgate has judged.

    A job has a line, and each of its steps has one; the peak is that of its largest step.
    """
    rows = [row for line in text.split("\n") if (row := _Row.read(line)) is not None]
    measured: dict[int, list[_Row]] = {}
    for row in rows:
        if row.gpu_bytes:
            measured.setdefault(row.job_id, []).append(row)
    for job in rows:
        comment = None if job.is_step else read_comment(job.comment)
        estimate = comment.record.id if comment else ""
        if not _ID.fullmatch(estimate):
            continue
        steps = measured.get(job.job_id, [])
        # the sum over several GPUs says nothing about one
        is_clear = all((row.num_gpus or job.num_gpus) <= row.num_tasks for row in steps)
        peak = max((row.gpu_bytes for row in steps), default=0)
        yield Finished(
            job_id=job.job_id,
            estimate=estimate,
            elapsed_seconds=job.elapsed_seconds,
            peak_bytes=peak if peak and is_clear else None,
            record=comment.record if comment else Record(),
        )


def ask_sacct(since: float) -> str:
    """Ask for the jobs that have ended since a given time."""
    start = time.strftime("%Y-%m-%dT%H:%M:%S", time.localtime(since))
    return run(
        [
            *("sacct", "--allusers", "--noheader", "--parsable2", "--noconvert"),
            f"--starttime={start}",
            "--endtime=now",
            f"--state={_STATES}",
            *SACCT_FORMAT,
        ]
    )


class Ledger:
    """Which jobs were reported, in a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            said: Any = json.loads(path.read_text()) if path.exists() else {}
            self.seen_until = float(said.get("seen_until", 0.0))
            self._reported = {int(job): float(at) for job, at in said.get("reported", {}).items()}
        except (OSError, ValueError, AttributeError, TypeError) as error:
            raise InputError(f"{path}: not a file of `memgate slurm outcomes`: {error}") from None

    def __contains__(self, job_id: int) -> bool:
        return job_id in self._reported

    def add(self, job_id: int, now: float) -> None:
        """Record a job; it is on disk when this returns."""
        self._reported[job_id] = now
        self._save()

    def remove(self, job_id: int) -> None:
        """Remove a job: it was not reported after all."""
        del self._reported[job_id]
        self._save()

    def advance(self, now: float) -> None:
        """Record up to when everything was seen; drop jobs that sacct will not list again."""
        self.seen_until = now
        oldest = now - 2 * _OVERLAP_SECONDS
        self._reported = {job: at for job, at in self._reported.items() if at > oldest}
        self._save()

    def _save(self) -> None:
        said = {"seen_until": self.seen_until, "reported": self._reported}
        fresh = self._path.with_name(self._path.name + ".new")
        with fresh.open("w") as file:
            json.dump(said, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)


class Reporter:
    """Reports what finished jobs took, once or forever."""

    def __init__(
        self,
        client: Client,
        ledger: Ledger,
        log: Callable[[str], None],
        *,
        shortest_seconds: float,
        ask: Callable[[float], str] = ask_sacct,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._client = client
        self._ledger = ledger
        self._log = log
        self._shortest_seconds = shortest_seconds
        self._ask = ask
        self._clock = clock

    def look(self) -> int:
        """Report what is new; return how many outcomes were reported."""
        now = self._clock()
        if not self._ledger.seen_until:
            self._ledger.advance(now)  # even if this first look fails
        since = self._ledger.seen_until - _OVERLAP_SECONDS
        found = [job for job in read_sacct(self._ask(since)) if job.job_id not in self._ledger]
        measured = [
            job for job in found if job.peak_bytes and job.elapsed_seconds >= self._shortest_seconds
        ]
        num_reported = self._report_all(measured)
        self._ledger.advance(now)
        return num_reported

    def _report_all(self, jobs: list[Finished]) -> int:
        num_reported, is_there = 0, False
        for job in jobs:
            if not is_there:
                self._client.gpus()  # while the server is away, outcomes are kept
                is_there = True
            try:
                self._report(job)
                num_reported += 1
            except AnswerError as error:
                if error.status in NOT_NOW:
                    self._ledger.remove(job.job_id)
                    raise
                # such as an estimate that has expired
                self._log(f"job {job.job_id}: not accepted: {error.message}")
            except ClientError as error:
                is_there = False
                self._log(f"job {job.job_id}: perhaps not received: {error.message}")
        return num_reported

    def _report(self, job: Finished) -> None:
        assert job.peak_bytes is not None
        self._ledger.add(job.job_id, self._clock())
        self._client.report_outcome(job.estimate, job.peak_bytes)
        self._log(f"job {job.job_id}: reported {job.peak_bytes} bytes for {job.estimate}")
