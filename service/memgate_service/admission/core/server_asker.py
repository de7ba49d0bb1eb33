"""Performs the sequence's steps by asking a memgate server. For programs that soon look again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from memgate.client.clients import Client
from memgate.client.errors import AnswerError, ClientError
from memgate.errors import Fault
from memgate.max_batch import MaxBatch
from memgate.owner import Owner
from memgate_service.admission.core.answers import (
    AnyAnswer,
    KnownAnswer,
    MissingAnswer,
    Question,
    being_made,
    read_error,
    read_failure,
)
from memgate_service.admission.core.sequence import AskBatches, AskEstimates, AwaitAdvice, Step

#: how long to wait for a largest batch, which is named once, when something is refused
_BATCH_SECONDS = 5.0

#: when to repeat a run that failed for a reason that may pass
_RUN_AGAIN_SECONDS = 30.0


#: nobody in particular
NOBODY = Owner()

#: faults after which the next round may find an answer
_WITHOUT_ANSWER = (Fault.OPERATOR, Fault.PASSING)


class _Key(NamedTuple):
    """A question, and for whom it is asked."""

    question: str
    owner: Owner


class _FailedRun(NamedTuple):
    at: float
    answer: MissingAnswer


class ServerAsker:
    """Asks a server, and does not wait: the next round finds what is not there yet."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._answers: dict[_Key, AnyAnswer] = {}
        self._failed: dict[_Key, _FailedRun] = {}
        #: ids of what had no answer in the last round, and in this one: it is not asked again
        self._asked: dict[_Key, str] = {}
        self._still_open: dict[_Key, str] = {}

    def start_round(self) -> None:
        """Ask all questions again; within a round each is asked once."""
        now = self._clock()
        self._failed = {
            key: run for key, run in self._failed.items() if now - run.at < _RUN_AGAIN_SECONDS
        }
        self._answers = {key: run.answer for key, run in self._failed.items()}
        self._asked, self._still_open = self._still_open, {}

    def problems(self) -> list[str]:
        """Return why questions of this round have no answer and will not get one."""
        missing = (one for one in self._answers.values() if isinstance(one, MissingAnswer))
        open_ones = (one for one in missing if one.fault in _WITHOUT_ANSWER)
        return list(dict.fromkeys(one.why for one in open_ones if not one.is_being_made))

    def do(self, step: Step[Any], owner: Owner = NOBODY) -> Any:
        """Do a step of the sequence, for somebody."""
        match step:
            case AskEstimates(questions):
                return {key: self._estimate(one, owner) for key, one in questions.items()}
            case AwaitAdvice():
                return {}
            case AskBatches(questions):
                return self._batches(questions, owner)
        raise AssertionError(f"a step of another door: {step}")

    def _estimate(self, question: Question, owner: Owner) -> AnyAnswer:
        key = _Key(question.key, owner)
        if key not in self._answers:
            self._answers[key] = self._find_asked(key) or self._ask(key, question)
        answer = self._answers[key]
        if isinstance(answer, MissingAnswer) and answer.is_being_made and answer.job_id:
            self._still_open[key] = answer.job_id
        return answer

    def _find_asked(self, key: _Key) -> AnyAnswer | None:
        """Return what became of a question of the last round; None if it must be asked (again)."""
        if key not in self._asked:
            return None
        try:
            record = self._client.job(self._asked[key])
        except ClientError:  # it may have expired
            return None
        if record.estimate is not None:
            is_pending = record.is_advice_pending(datetime.now(UTC))
            return KnownAnswer(
                job_id=record.id, estimate=record.estimate, is_advice_pending=is_pending
            )
        if record.error is not None:
            return self._note_failure(key, read_failure(record.id, record.error))
        return being_made(record.id)

    def _ask(self, key: _Key, question: Question) -> AnyAnswer:
        try:
            served = self._client.estimate(question.job, question.gpu, wait=0, owner=key.owner)
        except ClientError as error:
            missing = read_error(error)
            is_run = isinstance(error, AnswerError) and error.job is not None
            return self._note_failure(key, missing) if is_run else missing
        return KnownAnswer(
            job_id=served.id, estimate=served, is_advice_pending=served.is_advice_pending
        )

    def _note_failure(self, key: _Key, missing: MissingAnswer) -> MissingAnswer:
        """Note a run without an answer if asking again would run it again."""
        if missing.fault in _WITHOUT_ANSWER:
            self._failed[key] = _FailedRun(self._clock(), missing)
        return missing

    def _batches(self, questions: Mapping[str, Question], owner: Owner) -> dict[str, MaxBatch]:
        found = {}
        for key, one in questions.items():
            try:
                found[key] = self._client.max_batch(
                    one.job, one.gpu, wait=_BATCH_SECONDS, owner=owner
                )
            except ClientError:  # it is only advice, and others wait for their answers
                continue
        return found
