"""What happened to a job -> its owner, by the program that sends the cluster's mail.

Slurm has no words of a plugin's for a job that waits or was canceled, and the owner has long left
``sbatch``. So the program is called as Slurm calls its ``MailProg``: ``PROGRAM -s SUBJECT USER``,
with the text on standard input.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

from memgate_service.admission.slurm.commands import SlurmJob
from memgate_service.admission.slurm.records import Record

#: a mail program that hangs must not keep other jobs waiting
_TIMEOUT_SECONDS = 10.0

_MEANING = {
    "canceled": "It was canceled before it started.",
    "held": "It is held: an administrator decides.",
    "noted": "It was let in without an answer, and goes on.",
}


class Notices:
    """Tells owners; nothing is sent without a program."""

    def __init__(self, program: str, log: Callable[[str], None]) -> None:
        self._program = program
        self._log = log

    def send(self, job: SlurmJob, record: Record, done: str) -> None:
        """Tell the owner of a job what was done about it, and why."""
        user = job.subject.user
        if not self._program or not user or user.startswith("-"):
            return
        subject = f"Slurm Job_id={job.job_id} Name={job.job_name} {done} by memgate"
        lines = [f"memgate: job {job.job_id} {record.why}", _MEANING[done], record.page]
        try:
            ran = subprocess.run(
                [self._program, "-s", " ".join(subject.split()), user],
                input="\n".join([line for line in lines if line]) + "\n",
                env=os.environ | {"SLURM_JOB_ID": str(job.job_id), "SLURM_JOB_USER": user},
                capture_output=True,
                text=True,
                timeout=_TIMEOUT_SECONDS,
                check=False,
            )
            problem = ran.stderr.strip() if ran.returncode else ""
        except (OSError, subprocess.SubprocessError) as error:
            ran, problem = None, str(error)
        if ran is None or ran.returncode:
            self._log(f"job {job.job_id}: {user} could not be told: {problem[:200]}")
