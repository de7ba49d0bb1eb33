"""Jobs that nobody has described -> rehearsed, and released, canceled or noted by what that found.

Behind ``memgate slurm rehearse``. What there is to do is in Slurm's queue, so the program may be
stopped and started at any time: companions that run go on, and timers let jobs start without us.

- A rehearsal that fails says "cannot tell", and the job is released.
- A job is canceled only if what was seen of it alone does not fit, and its files are as they were.
- Where nothing is enforced, jobs are not held; the rehearsal runs beside them and is recorded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from memgate.audit import Done
from memgate.client.clients import Client
from memgate.client.errors import AnswerError, ClientError
from memgate.decision import Decision
from memgate.report import Estimate
from memgate_service.admission.core.policy_file import PolicyFile
from memgate_service.admission.core.rules import Mode, resolve
from memgate_service.admission.slurm.commands import SlurmCommands, SlurmError, SlurmJob, run
from memgate_service.admission.slurm.notices import Notices
from memgate_service.admission.slurm.records import Record
from memgate_service.admission.slurm.rehearsals.job_files import JobFiles, read_files
from memgate_service.admission.slurm.rehearsals.known import KnownResults, make_key
from memgate_service.admission.slurm.rehearsals.owners import digest_as
from memgate_service.admission.slurm.rehearsals.planning import RehearsalStep, Todo, plan
from memgate_service.admission.slurm.rehearsals.queue import WaitingJob, read_rehearsals
from memgate_service.admission.slurm.rehearsals.starting import CompanionPlace, make_request, start
from memgate_service.admission.slurm.settling import MAX_WHY
from memgate_service.admission.slurm.spool import Spool, name_record

_CANNOT_TELL = "memgate cannot tell whether it fits"


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalLimits:
    """How much is rehearsed."""

    max_rehearsals: int = 4
    """At one time; a user has one at a time."""
    patience_seconds: float = 180.0
    """For a job that is not held."""


class Broker:
    """Looks at all jobs that wait for a rehearsal, once or forever."""

    def __init__(
        self,
        client: Client,
        slurm: SlurmCommands,
        place: CompanionPlace,
        state: Path,
        log: Callable[[str], None],
        *,
        limits: RehearsalLimits,
        known: KnownResults,
        policy_file: PolicyFile,
        clock: Callable[[], float] = time.time,
        notices: Notices | None = None,
    ) -> None:
        self._client = client
        self._slurm = slurm
        self._place = place
        self._state = state
        self._log = log
        self._limits = limits
        self._known = known
        self._policy_file = policy_file
        self._clock = clock
        self._spool = Spool(client, None, log)
        self._notices = notices or Notices("", log)
        #: ended jobs that were recorded already: only to say it once
        self._recorded: set[int] = set()

    def look(self) -> int:
        """Do what there is to do; return how many jobs wait for a rehearsal."""
        queue = read_rehearsals(run(["squeue", "--json", "--states=all"]))
        limits = self._limits
        steps = plan(queue, self._clock(), limits.max_rehearsals, limits.patience_seconds)
        for step in steps:
            try:
                self._do(step)
            except SlurmError as error:  # its owner may have canceled it in the meantime
                self._log(f"{_name(step)}: {error.message}")
            except ClientError as error:  # asked again in the next round, while its timer runs
                self._log(f"{_name(step)}: no answer: {error.message}")
        self._spool.send({})
        self._recorded &= {one.job.job_id for one in queue.waiting}
        return sum(not one.job.has_ended for one in queue.waiting)

    def _do(self, step: RehearsalStep) -> None:
        if step.todo is Todo.CANCEL or (step.todo is Todo.GIVE_UP and step.companion is not None):
            assert step.companion is not None
            run(["scancel", "--quiet", str(step.companion.job_id)])
        if step.waiting is None or step.waiting.job.job_id in self._recorded:
            return
        if step.todo is Todo.START:
            self._start(step.waiting)
        elif step.todo is Todo.GIVE_UP:
            self._settle(step.waiting, None, "it was not rehearsed in time", is_late=True)
        elif step.todo is Todo.FINISH:
            self._finish(step)

    def _start(self, waiting: WaitingJob) -> None:
        try:
            files = read_files(self._state, waiting.script_of)
        except SlurmError as error:
            self._settle(waiting, None, error.message)
            return
        key = make_key(waiting, files, self._digest(waiting, files))
        found = self._known.find(key, self._clock())
        if found and (estimate := self._find_estimate(waiting, found)) is not None:
            self._settle(waiting, estimate, "", estimate_id=found)
            return
        left = self._seconds_left(waiting)
        request = make_request(waiting, files, self._place, left)
        try:
            number = start(waiting, request, self._place, key)
        except SlurmError as error:  # tried again, each try would leave a failed job behind
            self._settle(waiting, None, f"its rehearsal cannot be submitted: {error.message}")
            return
        self._log(f"job {waiting.job.job_id}: rehearsed by job {number}")

    def _finish(self, step: RehearsalStep) -> None:
        assert step.waiting is not None
        assert step.companion is not None
        waiting, result = step.waiting, step.companion.result
        if result is None:
            self._settle(waiting, None, "its rehearsal ended without a result")
            return
        if not result.estimate:
            self._settle(waiting, None, result.why)
            return
        files = read_files(self._state, waiting.script_of)
        code = self._digest(waiting, files)
        if code and code != result.code:
            self._settle(waiting, None, "its code was changed after it was rehearsed")
            return
        estimate = self._find_estimate(waiting, result.estimate)
        if estimate is None:
            self._settle(waiting, None, "the answer about its rehearsal is not for its GPU")
            return
        if code:
            self._known.add(step.companion.key, result.estimate, self._clock())
        self._settle(waiting, estimate, "", estimate_id=result.estimate)

    def _find_estimate(self, waiting: WaitingJob, estimate_id: str) -> Estimate | None:
        """Return memgate's answer; None if it is not there any more, or not about this GPU."""
        try:
            estimate = self._client.job(estimate_id).estimate
        except AnswerError as error:
            if error.status == 404:
                return None
            raise
        asked = waiting.job.record.gpu
        is_other = not asked.lstrip().startswith("{") and estimate and estimate.gpu != asked
        return None if is_other else estimate

    def _digest(self, waiting: WaitingJob, files: JobFiles) -> str:
        arguments = waiting.job.record.arguments
        return digest_as(waiting.uid, waiting.gid, waiting.directory, files.script, arguments)

    def _seconds_left(self, waiting: WaitingJob) -> float:
        record = waiting.job.record
        until = record.timer or waiting.job.submitted_at + self._limits.patience_seconds
        return until - self._clock()

    def _settle(
        self,
        waiting: WaitingJob,
        estimate: Estimate | None,
        why: str,
        *,
        estimate_id: str = "",
        is_late: bool = False,
    ) -> None:
        """Release, cancel or note a job; without an estimate nothing is known, and it is let in."""
        job = waiting.job
        mode = self._mode(job)
        record = _describe(job.record, estimate, why, estimate_id)
        if job.has_ended:  # Slurm takes no notes of it any more
            self._recorded.add(job.job_id)
            done: Done = "released" if job.record.held else "noted"
            self._tell(job, record, mode, done, id=name_record(job, done))
            return
        is_rejected = record.decision == Decision.REJECT and not job.het_job_id
        action = job.record.late if is_rejected and mode is Mode.ENFORCE else "admit"
        if not job.record.held or not job.is_pending:
            self._note(job, record, mode)
        elif action == "reject":
            self._slurm.note(job, msgspec.structs.replace(record, held=True))
            self._slurm.cancel(job)
            self._tell(job, record, mode, "canceled")
            self._notices.send(job, record, "canceled")
        elif action == "hold":
            self._slurm.note(job, msgspec.structs.replace(record, held=True))
            self._slurm.hold(job)
            self._tell(job, record, mode, "held")
            self._notices.send(job, record, "held")
        else:
            if not (is_late or job.is_admin_held or job.is_held):
                self._slurm.release(job)
            self._slurm.note(job, record)
            self._tell(job, record, mode, "released")

    def _note(self, job: SlurmJob, record: Record, mode: Mode) -> None:
        """Record what was found about a job that was not held; tell its owner if it matters."""
        kept = msgspec.structs.replace(record, mode=job.record.mode)
        self._slurm.note(job, kept)
        self._tell(job, record, mode, "noted")
        is_told = Mode.AUDIT not in (mode, job.record.mode)
        if record.decision == Decision.REJECT and is_told:
            self._notices.send(job, record, "noted")
        if record.decision == Decision.REJECT and is_told and not job.is_pending:
            try:
                self._slurm.notify(job, f"memgate: this job {record.why}")
            except SlurmError as error:  # only some jobs can be written to
                self._log(f"job {job.job_id}: its owner could not be told: {error.message}")

    def _mode(self, job: SlurmJob) -> Mode:
        return resolve(self._policy_file.read(), job.subject).mode

    def _tell(self, job: SlurmJob, record: Record, mode: Mode, done: Done, **more: str) -> None:
        self._spool.add(
            job,
            at=self._clock(),
            decision=record.decision,
            mode=mode,
            rule=resolve(self._policy_file.read(), job.subject).rule,
            done=done,
            why=f"rehearsed: {record.why}",
            estimate=record.id,
            page=record.page,
            **more,
        )
        self._log(f"job {job.job_id}: {done}: {record.why}")


def _describe(before: Record, estimate: Estimate | None, why: str, estimate_id: str) -> Record:
    """Return the record of what a rehearsal found."""
    if estimate is None:
        text = f"{_CANNOT_TELL}: {why}"[:MAX_WHY]
        return Record(decision=Decision.UNCERTAIN, gpu=before.gpu, why=text, audit=before.audit)
    return Record(
        decision=estimate.decision,
        needs=estimate.needs_bytes,
        capacity=estimate.capacity_bytes,
        gpu=before.gpu,
        id=estimate_id,
        page=f"/ui/jobs/{estimate_id}",
        why=estimate.explanation.text[:MAX_WHY],
        audit=before.audit,
    )


def _name(step: RehearsalStep) -> str:
    number = step.waiting.job.job_id if step.waiting else step.companion and step.companion.job_id
    return f"job {number}"
