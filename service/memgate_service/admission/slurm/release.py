"""Jobs without an answer -> released, canceled or left, once there is one.

Behind ``memgate slurm release``. Held jobs, and those that were let in without an answer, which are
followed up, even if they have ended by then. No state is kept here: what to do is in the jobs'
records, so the program may be stopped, started and run twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import msgspec

from memgate.audit import Done
from memgate.client.clients import Client
from memgate.decision import Decision
from memgate.errors import InputError, OperatorError
from memgate.owner import Owner
from memgate_service.admission.core.judgement import find_without_case
from memgate_service.admission.core.policy import Action, Policy
from memgate_service.admission.core.policy_file import PolicyFile
from memgate_service.admission.core.rules import Mode, resolve
from memgate_service.admission.core.sequence import Rules, judge_cases, run
from memgate_service.admission.core.server_asker import ServerAsker
from memgate_service.admission.slurm.commands import SlurmCommands, SlurmError, SlurmJob
from memgate_service.admission.slurm.notices import Notices
from memgate_service.admission.slurm.records import Record
from memgate_service.admission.slurm.settling import (
    MAX_WHY,
    WORDS,
    Settlement,
    find_cards,
    read_question,
    settle,
)
from memgate_service.admission.slurm.spool import Spool, name_record

#: with less time than this on its timer a job does not wait for advice
_LAST_SECONDS = 5.0

_TIMER_ENDED = "its timer ended before there was an answer"


class Releaser:
    """Checks all jobs without an answer, once or forever."""

    def __init__(
        self,
        client: Client,
        slurm: SlurmCommands,
        policy: Policy,
        log: Callable[[str], None],
        clock: Callable[[], float] = time.time,
        *,
        policy_file: PolicyFile | None = None,
        spool: Spool | None = None,
        notices: Notices | None = None,
    ) -> None:
        self._asker = ServerAsker(client)
        self._slurm = slurm
        self._policy = policy
        self._log = log
        self._clock = clock
        self._policy_file = policy_file or PolicyFile(None, log)
        self._spool = spool or Spool(client, None, log)
        self._notices = notices or Notices("", log)
        #: ended jobs, and what of them was recorded already: only to say it once
        self._recorded: set[tuple[int, Done]] = set()

    def look(self) -> int:
        """Check every such job once; return how many still wait for an answer."""
        num_waiting = 0
        self._asker.start_round()
        jobs = self._slurm.jobs()
        for job in jobs:
            if not job.record.is_open:
                continue
            try:
                if job.has_ended:
                    self._follow_ended(job)
                else:
                    num_waiting += self._look_at(job)
            except SlurmError as error:  # its owner may have canceled it in the meantime
                self._log(f"job {job.job_id}: {error.message}")
        for why in self._asker.problems():
            self._log(f"no answer: {why}")
        self._spool.send({job.record.audit: job for job in jobs if job.record.audit})
        known = {job.job_id for job in jobs}
        self._recorded = {one for one in self._recorded if one[0] in known}
        return num_waiting

    def _look_at(self, job: SlurmJob) -> bool:
        """Do what a job needs done; return whether it still waits."""
        if not job.record.question:
            self._look_at_decided(job)
            return False
        settlement = self._settle(job)
        if not job.record.held or self._is_timer_over(job):
            return self._follow_up(job, settlement)
        if job.record.timer:
            return self._look_at_timed(job, settlement)
        if not job.is_held:  # an administrator was quicker, or we were stopped halfway
            self._slurm.note(job, settlement.record)
            return False
        if settlement.action is Action.WAIT or settlement.is_advice_pending:
            return True
        return self._act(job, settlement)

    def _look_at_decided(self, job: SlurmJob) -> None:
        """Look at a job that waits for an administrator: not where nothing is enforced any more."""
        mode, rule = self._mode(job)
        record = _without_hold(job.record)
        # of a policy that cannot be read nobody knows whether it still holds the job
        if job.is_held and (mode is Mode.ENFORCE or self._policy_file.problem):
            return
        if job.is_held:
            if not (job.record.owner_held or job.is_admin_held):
                self._slurm.release(job)
            why = f"nothing is enforced any more ({rule}: {mode})"
            settlement = Settlement(action=Action.ADMIT, record=record, why=why)
            self._tell(job, settlement, "released")
            self._log(f"job {job.job_id}: {WORDS[Action.ADMIT]}: {why}")
        self._slurm.note(job, record)  # an administrator has decided, or we have released it

    def _look_at_timed(self, job: SlurmJob, settlement: Settlement) -> bool:
        """Look at a job whose timer still runs; Slurm starts it when the timer ends."""
        is_short = job.record.timer - self._clock() < _LAST_SECONDS
        is_waiting = settlement.is_advice_pending and not is_short
        if settlement.record.is_unanswered or is_waiting:
            return True
        return self._act(job, settlement)

    def _is_timer_over(self, job: SlurmJob) -> bool:
        timer = job.record.timer
        return bool(timer) and (self._clock() >= timer or not job.is_pending)

    def _settle(self, job: SlurmJob) -> Settlement:
        gpu = job.record.gpu
        waited_seconds = self._clock() - job.submitted_at
        rules = Rules(
            policy=self._policy,
            cluster=find_cards(job.record.cards),
            waited_seconds=waited_seconds,
        )
        try:
            case = read_question(job.record.question)
            owner = Owner(cluster=job.record.cluster, user=job.subject.user, job_name=job.job_name)
            asked = run(judge_cases([case], rules), partial(self._asker.do, owner=owner))
            return _keep_id(job.record, settle(asked, gpu))
        except InputError as mistake:
            why = mistake.message[:MAX_WHY]
            record = Record(gpu=gpu, decision="bad_spec", why=why)
            return Settlement(action=self._policy.mistaken, record=record, why=why)
        except OperatorError as error:
            return settle(rules.judge([find_without_case(error)]), gpu)

    def _mode(self, job: SlurmJob) -> tuple[Mode, str]:
        """Return the mode that is in force for a job now, and which rule says so."""
        chosen = resolve(self._policy_file.read(), job.subject)
        return chosen.mode, chosen.rule

    def _act(self, job: SlurmJob, settlement: Settlement) -> bool:
        """Do what was decided about a held job; nothing is canceled where nothing is enforced."""
        mode, _ = self._mode(job)
        action = mode.apply(settlement.action)
        record = msgspec.structs.replace(settlement.record, audit=job.record.audit)
        if action is Action.ADMIT:
            # released first: if we are stopped here, the record still says what to do
            if not (job.record.owner_held or job.is_admin_held):
                self._slurm.release(job)
            self._slurm.note(job, record)
            self._tell(job, settlement, "released")
        else:
            self._slurm.note(job, msgspec.structs.replace(record, held=True))
            if action is Action.REJECT:
                self._slurm.cancel(job)
            elif job.record.timer:  # the timer would let it start
                self._slurm.hold(job)
            done: Done = "canceled" if action is Action.REJECT else "held"
            self._tell(job, settlement, done)
            self._notices.send(job, record, done)
        self._log(f"job {job.job_id}: {WORDS[action]}: {settlement.why}")
        return False

    def _follow_up(self, job: SlurmJob, settlement: Settlement) -> bool:
        """Look at a job that was let in without an answer, or started when its timer ended."""
        if job.record.held:
            self._slurm.note(job, _without_hold(job.record))
            self._tell(job, settlement, "released", why=_TIMER_ENDED)
            self._log(f"job {job.job_id}: {_TIMER_ENDED}")
        if settlement.record.is_unanswered or settlement.is_advice_pending:
            return False
        mode, _ = self._mode(job)
        is_rejected = settlement.record.decision == Decision.REJECT
        record = msgspec.structs.replace(
            settlement.record, audit=job.record.audit, mode=job.record.mode
        )
        self._slurm.note(job, record)
        may_cancel = mode is Mode.ENFORCE and not job.record.mode and job.record.late == "reject"
        if is_rejected and may_cancel and job.is_pending:
            self._slurm.cancel(job)
            self._tell(job, settlement, "canceled")
            self._notices.send(job, record, "canceled")
        else:
            self._tell(job, settlement, "noted")
            if is_rejected and Mode.AUDIT not in (mode, job.record.mode):
                self._notices.send(job, record, "noted")
                if not job.is_pending:
                    self._notify(job, settlement.why)
        self._log(f"job {job.job_id}: followed up: {settlement.why}")
        return False

    def _follow_ended(self, job: SlurmJob) -> None:
        """Record what became of a job that ended before anybody looked; Slurm takes no notes."""
        is_done = (job.job_id, "noted") in self._recorded
        if is_done or not job.had_node or not job.record.question:
            return  # canceled by its owner, or by us
        settlement = self._settle(job)
        if job.record.held:
            self._record_once(job, settlement, "released", why=_TIMER_ENDED)
        if not (settlement.record.is_unanswered or settlement.is_advice_pending):
            self._record_once(job, settlement, "noted")
            self._log(f"job {job.job_id}: followed up after its end: {settlement.why}")

    def _record_once(
        self, job: SlurmJob, settlement: Settlement, done: Done, *, why: str = ""
    ) -> None:
        """Record something about a job whose own record cannot be changed any more."""
        if (job.job_id, done) not in self._recorded:
            self._recorded.add((job.job_id, done))
            self._tell(job, settlement, done, why=why, id=name_record(job, done))

    def _notify(self, job: SlurmJob, why: str) -> None:
        try:
            self._slurm.notify(job, f"memgate: this job {why}")
        except SlurmError as error:  # only some jobs can be written to
            self._log(f"job {job.job_id}: its owner could not be told: {error.message}")

    def _tell(
        self, job: SlurmJob, settlement: Settlement, done: Done, *, why: str = "", **more: str
    ) -> None:
        """Record what was done."""
        mode, rule = self._mode(job)
        is_unanswered = bool(why) or settlement.record.is_unanswered
        self._spool.add(
            job,
            at=self._clock(),
            decision="unanswered" if is_unanswered else settlement.record.decision,
            mode=mode,
            rule=rule,
            done=done,
            why=why or settlement.why,
            estimate=settlement.record.id,
            page=settlement.record.page,
            **more,
        )


def _keep_id(asked: Record, settlement: Settlement) -> Settlement:
    """Name the question that was asked when the job was submitted: its owner has that page."""
    answered = settlement.record
    if not asked.id or not answered.id:
        return settlement
    page = answered.page.replace(answered.id, asked.id)
    return replace(settlement, record=msgspec.structs.replace(answered, id=asked.id, page=page))


def _without_hold(record: Record) -> Record:
    return msgspec.structs.replace(record, held=False, owner_held=False, timer=0, begin=0)
