"""The one sequence of asking and judging, for every door.

A generator: it yields what to ask next, is sent the answers, and returns the judgement. How to ask,
and how long that may take, is not decided here: webhooks ask the queue without blocking
(``http/queue_asker.py``), the programs that run next to a cluster ask a server (``server_asker``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from memgate.errors import InputError, MemgateError
from memgate.gpus import GpuSpec
from memgate.max_batch import MaxBatch
from memgate_service.admission.core.answers import AnyAnswer, KnownAnswer, Question
from memgate_service.admission.core.cases import Case
from memgate_service.admission.core.judgement import Finding, Judgement, find, judge
from memgate_service.admission.core.policy import Policy

#: about one object: its jobs, on the generations of GPUs that it may get
_MAX_QUESTIONS = 32

T = TypeVar("T")


class Step(Generic[T]):
    """Something to ask; ``T`` is what the sequence is sent in return."""


@dataclass(frozen=True, slots=True)
class AskEstimates(Step[dict[str, AnyAnswer]]):
    """Ask questions, by key; each must get an answer, or the reason why there is none."""

    questions: Mapping[str, Question]


@dataclass(frozen=True, slots=True)
class AwaitAdvice(Step[dict[str, KnownAnswer]]):
    """Wait for advice on answers, by the ids of their jobs; those without any are left out."""

    job_ids: Sequence[str]


@dataclass(frozen=True, slots=True)
class AskBatches(Step[dict[str, MaxBatch]]):
    """Ask for the largest batches, by key; those not known in time are left out."""

    questions: Mapping[str, Question]


#: yields steps, is sent what they give, returns a ``T``
Judging = Generator[Step[Any], Any, T]


def perform(step: Step[T]) -> Judging[T]:
    """Have a step done: ``answers = yield from perform(AskEstimates(questions))``."""
    done: T = yield step
    return done


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What the operator has set, and how long an object has waited for its answer."""

    policy: Policy
    cluster: Sequence[GpuSpec] = ()
    """The GPUs of the cluster; empty if they are not known."""
    waited_seconds: float = 0.0

    def judge(self, findings: Sequence[Finding]) -> Judgement:
        """Apply the rules to what was found."""
        return judge(
            findings, self.policy, cluster=self.cluster, waited_seconds=self.waited_seconds
        )


def judge_cases(
    cases: Sequence[Case], rules: Rules, *, is_final: bool = True
) -> Judging[Judgement]:
    """Ask about the jobs of an object, and judge it; if that is final, also ask what would fit.

    Raises:
        InputError: if what a person wrote about a job is wrong, or there are too many questions.
    """
    # 1. Ask whether the jobs fit,
    asked, questions = _collect(cases)
    answers = yield from perform(AskEstimates(questions))
    # 2. and judge. Everything after this changes what a refusal says, never whether it is one.
    judgement = rules.judge(_find_all(cases, asked, answers, rules))
    if not is_final:
        return judgement
    # 3. A worker may be looking for what would fit: wait for it,
    awaited = judgement.awaited_advice()
    if awaited:
        advised = yield from perform(AwaitAdvice(awaited))
        answers = {key: advised.get(one.job_id, one) for key, one in answers.items()}
        judgement = rules.judge(_find_all(cases, asked, answers, rules))
    # 4. or ask; not for what is still awaited, which would repeat the same runs.
    batches = {} if judgement.awaited_advice() else judgement.batch_questions()
    if batches:
        judgement = judgement.with_batches((yield from perform(AskBatches(batches))))
    return judgement


def _collect(cases: Sequence[Case]) -> tuple[list[dict[str, str]], dict[str, Question]]:
    """Return each case's questions as keys, under the case's own names, and all questions."""
    questions: dict[str, Question] = {}
    asked: list[dict[str, str]] = []
    for case in cases:
        own = case.questions()
        asked.append({name: question.key for name, question in own.items()})
        questions |= {question.key: question for question in own.values()}
    if len(questions) > _MAX_QUESTIONS:
        number = f"{len(questions)} questions, by its jobs and the kinds of GPU it names"
        raise InputError(f"this asks {number}; an object may ask {_MAX_QUESTIONS}")
    return asked, questions


def _find_all(
    cases: Sequence[Case],
    asked: Sequence[Mapping[str, str]],
    answers: Mapping[str, AnyAnswer],
    rules: Rules,
) -> list[Finding]:
    return [
        find(case, {name: answers[key] for name, key in keys.items()}, rules.cluster)
        for case, keys in zip(cases, asked, strict=True)
    ]


def run(judging: Judging[T], do: Callable[[Step[Any]], Any]) -> T:
    """Run a sequence; ``do`` performs its steps and blocks."""
    try:
        step = next(judging)
        while True:
            try:
                done = do(step)
            except MemgateError as error:
                step = judging.throw(error)
            else:
                step = judging.send(done)
    except StopIteration as end:
        judged: T = end.value
        return judged


async def run_async(judging: Judging[T], do: Callable[[Step[Any]], Awaitable[Any]]) -> T:
    """Run a sequence; ``do`` performs its steps without blocking."""
    try:
        step = next(judging)
        while True:
            try:
                done = await do(step)
            except MemgateError as error:
                step = judging.throw(error)
            else:
                step = judging.send(done)
    except StopIteration as end:
        judged: T = end.value
        return judged
