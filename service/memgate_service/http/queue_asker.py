"""Performs the steps of a gate's sequence by asking the queue, in the time that a webhook has.

A dry run asks nothing new: it finds what is known.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple, TypeVar

import anyio
import anyio.to_thread

from memgate.contract import Asker, JobRecord, Priority, UnknownJobError, Work, WorkKind
from memgate.errors import Fault, MemgateError
from memgate.jobspec import JobSpec
from memgate.max_batch import MaxBatch
from memgate.owner import Owner
from memgate.report import Estimate
from memgate_service.admission.core.answers import (
    AnyAnswer,
    KnownAnswer,
    MissingAnswer,
    Question,
    being_made,
    read_failure,
)
from memgate_service.admission.core.sequence import AskBatches, AskEstimates, AwaitAdvice, Step
from memgate_service.admission.kubernetes.cluster import ClusterError
from memgate_service.admission.kubernetes.judging import ReadConfigMaps
from memgate_service.http.dependencies import Dependencies
from memgate_service.http.errors import ProblemError
from memgate_service.http.questions import is_advice_pending, wait_for
from memgate_service.http.response_cache import CachedResponse, cache_key
from memgate_worker.queue.client import AskedQuestion, QueueError

#: Kubernetes' default, for a webhook that does not set its own
_DEFAULT_TIMEOUT = 10.0

#: how long to wait for a largest batch, and for how long after it was first asked for
_BATCH_SECONDS = 10.0

#: for a look at the question that was noted on an object, where nothing is waited for
_NOTED_SECONDS = 1.0

_SECONDS = re.compile(r"(\d{1,4}(?:\.\d{1,9})?)s")

T = TypeVar("T")


class TimeBudget(NamedTuple):
    """How long an answer may take, in seconds."""

    wait: float
    """For a job that is being run."""
    limit: float
    """For everything: a store that hangs, an API server that is slow."""

    def after(self, seconds: float) -> TimeBudget:
        """Return what is left of it."""
        return TimeBudget(max(0.0, self.wait - seconds), max(0.0, self.limit - seconds))


def read_timeout(timeout: str | None, wait: float) -> TimeBudget:
    """Return how much time there is, given how long the API server waits (``timeout=10s``).

    A little less than all of it, which docs/kubernetes.md states: the answer has to get back.
    """
    found = _SECONDS.fullmatch(timeout or "")
    seconds = float(found.group(1)) if found else _DEFAULT_TIMEOUT
    limit = max(0.1, 0.9 * seconds - 0.2)
    return TimeBudget(wait=min(wait, max(0.0, limit - 0.1)), limit=limit)


class QueueAsker:
    """Performs the steps of one review, which share its time."""

    def __init__(
        self,
        deps: Dependencies,
        budget: TimeBudget,
        *,
        is_dry_run: bool,
        owner: Owner | None = None,
        asked: Mapping[str, str] | None = None,
        noted: str = "",
    ) -> None:
        self._deps = deps
        self._budget = budget
        self._is_dry_run = is_dry_run
        self._owner = owner or Owner()
        #: the ids of questions, by what is asked
        self.asked = dict(asked or {})
        #: the id of a question that was noted on the object, perhaps by its author
        self._noted = noted
        self._began_at = anyio.current_time()

    async def do(self, step: Step[Any]) -> Any:
        """Do a step of the sequence."""
        budget = self._budget.after(anyio.current_time() - self._began_at)
        match step:
            case ReadConfigMaps(namespace, references):
                return await self._read_config_maps(namespace, references, budget)
            case AskEstimates(questions):
                return await _side_by_side(questions, lambda one: self._estimate(one, budget))
            case AwaitAdvice(job_ids):
                ids = {job_id: job_id for job_id in job_ids}
                return await _side_by_side(ids, lambda job_id: self._advised(job_id, budget))
            case AskBatches(questions):
                return await _side_by_side(questions, lambda one: self._batch(one, budget))
        raise AssertionError(f"a step of another door: {step}")

    async def _read_config_maps(
        self, namespace: str, references: Iterable[str], budget: TimeBudget
    ) -> dict[str, str]:
        try:
            with anyio.fail_after(budget.limit):
                return await anyio.to_thread.run_sync(
                    self._deps.config_maps.read, namespace, references, abandon_on_cancel=True
                )
        except TimeoutError:
            raise ClusterError("Kubernetes' API server does not answer") from None

    async def _estimate(self, question: Question, budget: TimeBudget) -> AnyAnswer:
        cached = self._deps.answers.get(_key(question.key))
        if cached is not None and not self._is_dry_run:
            self._deps.metrics.cache_lookups.labels("memory").inc()
            noted = await self._find_noted(question.key, budget.limit)
            asked = AskedQuestion.of(
                cached.run, WorkKind.ESTIMATE, time.time(), self._owner, id=noted
            )
            self._deps.asked.add(asked)
            estimate = Estimate.model_validate_json(cached.body(asked.id))
            return KnownAnswer(job_id=asked.id, estimate=estimate)
        try:
            with anyio.fail_after(budget.limit):
                record = await self._find(question, budget.wait)
        except TimeoutError:
            return _no_answer("memgate's queue does not answer")
        except QueueError:
            return _no_answer("memgate's queue cannot be reached")
        except (MemgateError, ProblemError) as error:  # nothing was run: not the author's fault
            fault = Fault.PASSING if error.fault is Fault.CALLER else error.fault
            return MissingAnswer(fault=fault, why=str(error))
        if record is None:
            return _no_answer("nobody has asked before, and a dry run does not ask")
        question_id = record.id if record.run else ""  # a dry run that asked nothing has none
        if record.error is not None:
            return read_failure(question_id, record.error)
        return being_made(question_id) if record.state.is_open else self._read(record)

    async def _find(self, question: Question, seconds: float) -> JobRecord | None:
        if self._is_dry_run:
            return await self._look_up(question.key)
        start = anyio.current_time()
        noted = await self._find_noted(question.key, seconds + _NOTED_SECONDS)
        record = await self._submit(question, WorkKind.ESTIMATE, Priority.HIGH, Asker.CALLER, noted)
        self.asked[question.key] = record.id
        found = "nowhere" if record.state.is_open else "store"
        self._deps.metrics.cache_lookups.labels(found).inc()
        return await wait_for(self._deps, record, seconds - (anyio.current_time() - start))

    async def _advised(self, job_id: str, budget: TimeBudget) -> KnownAnswer | None:
        """Wait for advice; only what a refusal says depends on it."""
        try:
            with anyio.fail_after(budget.limit):
                is_run = self._is_dry_run and job_id not in self.asked.values()
                read = self._deps.queue.read if is_run else self._deps.asked.read
                record = await self._read_if_known(read, job_id)
                if record is not None:
                    seconds = 0 if self._is_dry_run else min(budget.wait, _BATCH_SECONDS)
                    record = await wait_for(self._deps, record, seconds, with_advice=True)
        except (TimeoutError, QueueError, MemgateError, ProblemError):
            return None
        if record is None:
            return None
        answer = self._read(record)
        if isinstance(answer, KnownAnswer) and not answer.is_advice_pending:
            return answer
        return None

    async def _batch(self, question: Question, budget: TimeBudget) -> MaxBatch | None:
        """Ask for a largest batch.

        Finding one takes several runs: questions whether jobs fit come first, and one that was
        asked for a while ago is not waited for.
        """
        key = _key(question.key, WorkKind.MAX_BATCH)
        cached = self._deps.answers.get(key)
        if cached is not None:
            return MaxBatch.model_validate_json(cached.body(cached.run))
        try:
            with anyio.fail_after(budget.limit):
                record = await self._find_batch(question, budget.wait)
        except (TimeoutError, QueueError, MemgateError, ProblemError):
            return None
        if record is None or not isinstance(record.result, MaxBatch):
            return None
        batch = record.result
        body = batch.model_dump_json().encode()
        self._deps.answers[key] = CachedResponse.of(record, body)
        return batch

    async def _find_batch(self, question: Question, seconds: float) -> JobRecord | None:
        if self._is_dry_run:
            return await self._look_up(question.key)
        start = anyio.current_time()
        record = await self._submit(question, WorkKind.MAX_BATCH, Priority.NORMAL, Asker.GATE)
        age = (datetime.now(UTC) - record.created_at).total_seconds()
        left = min(seconds - (anyio.current_time() - start), _BATCH_SECONDS - age)
        return await wait_for(self._deps, record, left)

    async def _look_up(self, key: str) -> JobRecord | None:
        """Return what is known: about the question that was asked, or about its run."""
        question_id = self.asked.get(key)
        if question_id is None:
            return await self._read_if_known(self._deps.queue.read, key)
        return await self._read_if_known(self._deps.asked.read, question_id)

    async def _read_if_known(self, read: Callable[[str], JobRecord], name: str) -> JobRecord | None:
        try:
            return await anyio.to_thread.run_sync(read, name, abandon_on_cancel=True)
        except UnknownJobError:
            return None

    async def _find_noted(self, key: str, seconds: float) -> str:
        """Return the id that was noted on the object, if it is of this question and owner.

        An object that is reviewed again has one question, and is not changed again.
        """
        if not self._noted:
            return ""
        try:
            with anyio.fail_after(seconds):
                found = await anyio.to_thread.run_sync(
                    self._deps.asked.find, self._noted, abandon_on_cancel=True
                )
        except (TimeoutError, QueueError, UnknownJobError):
            return ""
        mine = (self._owner.key, self._owner.cluster, self._owner.namespace)
        is_mine = (found.key, found.cluster, found.namespace) == mine
        return found.id if is_mine and found.run == key and not found.is_withdrawn else ""

    async def _submit(
        self,
        question: Question,
        kind: WorkKind,
        priority: Priority,
        asker: Asker,
        question_id: str = "",
    ) -> JobRecord:
        assert isinstance(question.job, JobSpec)
        work = Work(kind=kind, job=question.job, gpu=question.gpu)
        return await anyio.to_thread.run_sync(
            self._deps.queue.ask,
            work,
            self._owner,
            priority,
            asker,
            question_id,
            limiter=self._deps.submitting,
            abandon_on_cancel=True,
        )

    def _read(self, record: JobRecord) -> AnyAnswer:
        estimate = record.estimate
        if estimate is None:
            return _no_answer("the job has no estimate")
        if is_advice_pending(record):
            return KnownAnswer(job_id=record.id, estimate=estimate, is_advice_pending=True)
        body = estimate.model_dump_json().encode()
        self._deps.answers[_key(record.run_id)] = CachedResponse.of(record, body)
        return KnownAnswer(job_id=record.id, estimate=estimate)


Asked = TypeVar("Asked")


async def _side_by_side(
    asked: Mapping[str, Asked], ask: Callable[[Asked], Awaitable[T | None]]
) -> dict[str, T]:
    """Ask all at the same time; those without an answer are left out."""
    answers: dict[str, T] = {}

    async def put(key: str, one: Asked) -> None:
        answer = await ask(one)
        if answer is not None:
            answers[key] = answer

    async with anyio.create_task_group() as tasks:
        for key, one in asked.items():
            tasks.start_soon(put, key, one)
    return answers


def _no_answer(why: str) -> MissingAnswer:
    return MissingAnswer(fault=Fault.PASSING, why=why)


def _key(job_id: str, kind: WorkKind = WorkKind.ESTIMATE) -> bytes:
    return cache_key(kind, job_id.encode())
