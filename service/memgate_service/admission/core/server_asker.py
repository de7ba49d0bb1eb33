"""Performs the sequence's steps by asking a memgate server. For programs that soon look again."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from memgate.client.clients import Client
from memgate.client.errors import AnswerError, ClientError
from memgate.errors import Fault
from memgate.max_batch import MaxBatch
from memgate_service.admission.core.answers import (
    AnyAnswer,
    KnownAnswer,
    MissingAnswer,
    Question,
    read_error,
)
from memgate_service.admission.core.sequence import AskBatches, AskEstimates, AwaitAdvice, Step

#: how long to wait for a largest batch, which is named once, when something is refused
_BATCH_SECONDS = 5.0

#: when to repeat a run that failed for a reason that may pass
_RUN_AGAIN_SECONDS = 30.0


#: faults after which the next round may find an answer
_WITHOUT_ANSWER = (Fault.OPERATOR, Fault.PASSING)


class _FailedRun(NamedTuple):
    at: float
    answer: MissingAnswer


class ServerAsker:
    """Asks a server, and does not wait: the next round finds what is not there yet."""

    def __init__(self, client: Client, clock: Callable[[], float] = time.monotonic) -> None:
        self._client = client
        self._clock = clock
        self._answers: dict[str, AnyAnswer] = {}
        self._failed: dict[str, _FailedRun] = {}

    def start_round(self) -> None:
        """Ask all questions again; within a round each is asked once."""
        now = self._clock()
        self._failed = {
            key: run for key, run in self._failed.items() if now - run.at < _RUN_AGAIN_SECONDS
        }
        self._answers = {key: run.answer for key, run in self._failed.items()}

    def problems(self) -> list[str]:
        """Return why questions of this round have no answer and will not get one."""
        missing = (one for one in self._answers.values() if isinstance(one, MissingAnswer))
        open_ones = (one for one in missing if one.fault in _WITHOUT_ANSWER)
        return list(dict.fromkeys(one.why for one in open_ones if not one.is_being_made))

    def do(self, step: Step[Any]) -> Any:
        """Do a step of the sequence."""
        match step:
            case AskEstimates(questions):
                return {key: self._estimate(one) for key, one in questions.items()}
            case AwaitAdvice():
                return {}
            case AskBatches(questions):
                return self._batches(questions)
        raise AssertionError(f"a step of another door: {step}")

    def _estimate(self, question: Question) -> AnyAnswer:
        if question.key not in self._answers:
            self._answers[question.key] = self._ask(question)
        return self._answers[question.key]

    def _ask(self, question: Question) -> AnyAnswer:
        try:
            served = self._client.estimate(question.job, question.gpu, wait=0)
        except ClientError as error:
            missing = read_error(error)
            is_run = isinstance(error, AnswerError) and error.job is not None
            if is_run and missing.fault in _WITHOUT_ANSWER:  # asking again runs it again
                self._failed[question.key] = _FailedRun(self._clock(), missing)
            return missing
        return KnownAnswer(
            job_id=served.id, estimate=served, is_advice_pending=served.is_advice_pending
        )

    def _batches(self, questions: Mapping[str, Question]) -> dict[str, MaxBatch]:
        found = {}
        for key, one in questions.items():
            try:
                found[key] = self._client.max_batch(one.job, one.gpu, wait=_BATCH_SECONDS)
            except ClientError:  # it is only advice, and others wait for their answers
                continue
        return found
