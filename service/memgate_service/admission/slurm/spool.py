"""The audit's records that the plugin leaves in a file, and our own -> ``POST /audit``.

A file is renamed before it is read, and removed once its records have arrived; each has an id, so
one that is sent twice is stored once.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import uuid4

from pydantic import ValidationError

from memgate.audit import AuditEntry
from memgate.client.clients import Client
from memgate.client.errors import ClientError
from memgate_service.admission.slurm.commands import SlurmJob

#: records in one request
_BATCH = 500

#: our own that wait while memgate is away; the oldest are dropped
_MAX_OWN = 10_000


def name_record(job: SlurmJob, done: str) -> str:
    """Return the id of a record about an ended job: it is sent once, whoever sends it how often."""
    return f"{job.record.audit or f'job-{job.job_id}-{int(job.submitted_at)}'}-{done}"


class Spool:
    """Sends records; ``path`` is the plugin's file, None if there is none."""

    def __init__(self, client: Client, path: Path | None, log: Callable[[str], None]) -> None:
        self._client = client
        self._path = path
        self._log = log
        self._own: list[AuditEntry] = []

    def add(self, job: SlurmJob, **fields: Any) -> None:
        """Add a record of our own about a job."""
        where: dict[str, Any] = {
            "id": uuid4().hex,
            "gate": "slurm",
            "kind": "job",
            "job": str(job.job_id),
            "name": job.job_name,
            "user": job.subject.user,
            "account": job.subject.account,
            "qos": job.subject.qos,
            "partition": ",".join(job.subject.partition),
            "gpu": job.record.gpu,
        }
        self._own = [*self._own, AuditEntry.model_validate(where | fields)][-_MAX_OWN:]

    def send(self, jobs: Mapping[str, SlurmJob]) -> None:
        """Send what there is; ``jobs`` by the id of their record. What fails is sent later."""
        try:
            if self._own:
                self._send_all(self._own)
                self._own = []
            if self._path is not None:
                self._send_file(self._path, jobs)
        except (ClientError, OSError) as error:
            self._log(f"the audit's records wait: {error}")

    def _send_file(self, path: Path, jobs: Mapping[str, SlurmJob]) -> None:
        lock = path.with_name(path.name + ".lock")
        with lock.open("ab") as mine:
            try:
                fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return  # another one sends them: it would remove what we have only begun to read
            self._send_taken(path, jobs)

    def _send_taken(self, path: Path, jobs: Mapping[str, SlurmJob]) -> None:
        taken = path.with_name(path.name + ".sending")
        if not taken.exists():
            if not path.exists():
                return
            path.rename(taken)
        num_bytes = -1
        while num_bytes != (size := taken.stat().st_size):  # a line may have been on its way
            num_bytes = size
            text = taken.read_bytes().decode(errors="replace")
            self._send_all([one for line in text.splitlines() for one in self._read(line, jobs)])
        taken.unlink()

    def _read(self, line: str, jobs: Mapping[str, SlurmJob]) -> list[AuditEntry]:
        try:
            fields = json.loads(line)
            job = jobs.get(fields["id"])
            return [AuditEntry.model_validate(fields | ({"job": job.name} if job else {}))]
        except (ValueError, TypeError, KeyError, ValidationError):
            self._log(f"a line of the audit cannot be read: {line[:200]}")
            return []

    def _send_all(self, entries: list[AuditEntry]) -> None:
        for first in range(0, len(entries), _BATCH):
            self._client.record_decisions(entries[first : first + _BATCH])
