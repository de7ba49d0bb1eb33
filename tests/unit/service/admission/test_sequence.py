"""The one sequence of asking and judging: which steps there are, whoever does them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from memgate.contract import Work, WorkKind
from memgate.decision import Decision
from memgate.errors import Fault, InputError, MemgateError, PassingError
from memgate.gpus import CATALOGUE
from memgate.jobspec import parse_job_spec
from memgate.max_batch import MaxBatch
from memgate.units import GIB
from memgate_service.admission.core.answers import KnownAnswer, MissingAnswer
from memgate_service.admission.core.cases import PlacedCase
from memgate_service.admission.core.judgement import Judgement, MistakeError, find
from memgate_service.admission.core.places import Declared, Place
from memgate_service.admission.core.policy import Action, Policy
from memgate_service.admission.core.sequence import (
    AskBatches,
    AskEstimates,
    AwaitAdvice,
    Judging,
    Rules,
    Step,
    judge_cases,
    perform,
    run,
    run_async,
)
from tests.admission import SPEC, answer_work, make_estimate

_JOB = parse_job_spec(SPEC)


def make_case(*gpus: str, declared: int = 0, **more: Any) -> PlacedCase:
    """Make a case of a job that may run on these GPUs, with so much declared, in GiB."""
    part = Declared(size_bytes=declared * GIB, name="nvidia.com/gpumem") if declared else None
    places = tuple(Place(gpu=CATALOGUE[name], declared=part) for name in gpus)
    return PlacedCase(job=_JOB, places=places, **more)


class Script:
    """Does the steps of a sequence as a test wants, and remembers them."""

    def __init__(self, size_bytes: int, *, pending: bool = False, advised: bool = False) -> None:
        self._size_bytes = size_bytes
        self._pending = pending
        self._advised = advised
        self.steps: list[str] = []

    def do(self, step: Step[Any]) -> Any:
        """Answer."""
        self.steps.append(type(step).__name__)
        match step:
            case AskEstimates(questions):
                return {
                    key: KnownAnswer(
                        job_id=key,
                        estimate=make_estimate(self._size_bytes, one.gpu.name),
                        is_advice_pending=self._pending,
                    )
                    for key, one in questions.items()
                }
            case AwaitAdvice(job_ids):
                estimate = make_estimate(self._size_bytes)
                advised = estimate.model_copy(update={"largest_batch_size": 32})
                known = {one: KnownAnswer(job_id=one, estimate=advised) for one in job_ids}
                return known if self._advised else {}
            case AskBatches(questions):
                return {key: self._batch(one) for key, one in questions.items()}
        raise AssertionError(step)

    def _batch(self, question: Any) -> MaxBatch:
        work = Work(kind=WorkKind.MAX_BATCH, job=question.job, gpu=question.gpu)
        found = answer_work(work, self._size_bytes)
        assert isinstance(found, MaxBatch)
        return found


def _judge(script: Script, *cases: PlacedCase, is_final: bool = True, **policy: Any) -> Judgement:
    rules = Rules(policy=Policy(**policy))
    return run(judge_cases(cases, rules, is_final=is_final), script.do)


_ESTIMATES, _ADVICE, _BATCHES = "AskEstimates", "AwaitAdvice", "AskBatches"


@pytest.mark.parametrize(
    ("script", "want_steps", "want_batch"),
    [
        pytest.param(Script(GIB), [_ESTIMATES], "", id="it fits"),
        pytest.param(Script(20 * GIB), [_ESTIMATES, _BATCHES], "batch size 16", id="refused"),
        pytest.param(
            Script(20 * GIB, pending=True, advised=True),
            [_ESTIMATES, _ADVICE],
            "batch size 32",
            id="advice is found",
        ),
        pytest.param(
            Script(20 * GIB, pending=True), [_ESTIMATES, _ADVICE], "", id="advice is still awaited"
        ),
    ],
)
def test_a_refusal_is_followed_by_what_would_fit(
    script: Script, want_steps: list[str], want_batch: str
) -> None:
    """Nothing is asked twice: advice that a worker looks for is awaited, or left out."""
    judgement = _judge(script, make_case("t4"))
    assert script.steps == want_steps
    assert want_batch in judgement.message
    assert ("batch size" in judgement.message) is bool(want_batch)


@pytest.mark.parametrize(
    ("fits_on", "cluster", "want"),
    [
        (["a100-40"], ["t4", "a100-40"], "as it is, it fits on a100-40"),
        (["a100-40"], ["t4"], "it fits on no GPU of this cluster"),
        ([], ["t4"], "it fits on no GPU of this cluster"),
        ([], ["t4", "a100-40"], ""),
    ],
    ids=["on one", "elsewhere", "on none", "in doubt"],
)
def test_a_job_in_doubt_is_not_said_to_fit_nowhere(
    fits_on: list[str], cluster: list[str], want: str
) -> None:
    """A GPU that is large enough is not ruled out, though none would admit it."""
    case = make_case("t4")
    (key,) = case.questions()
    estimate = make_estimate(20 * GIB).model_copy(update={"fits_on": fits_on})
    known = {key: KnownAnswer(job_id="0a", estimate=estimate)}

    helps = find(case, known, [CATALOGUE[name] for name in cluster]).explanation.helps

    assert want in "; ".join(helps)
    assert bool(helps) is bool(want)


def test_what_is_not_final_asks_once() -> None:
    """The mutating webhook says nothing, so it does not wait for what to say."""
    script = Script(20 * GIB)
    assert _judge(script, make_case("t4"), is_final=False).action is Action.REJECT
    assert script.steps == [_ESTIMATES]


def test_a_part_of_a_gpu_is_not_what_advice_is_about() -> None:
    """The worker looks for a batch for the whole GPU: for the part it is asked."""
    script = Script(20 * GIB, pending=True)
    _judge(script, make_case("t4", declared=4))
    assert script.steps == [_ESTIMATES, _BATCHES]


def test_one_question_is_asked_for_all_pods_alike() -> None:
    """And for all GPUs of a generation."""
    asked: list[int] = []

    def do(step: Step[Any]) -> Any:
        if isinstance(step, AskEstimates):
            asked.append(len(step.questions))
        return Script(GIB).do(step)

    rules = Rules(policy=Policy())
    run(judge_cases([make_case("t4"), make_case("t4"), make_case("a10", "a10g")], rules), do)
    assert asked == [2]


def test_the_worst_part_of_an_object_decides() -> None:
    """And only what is said of it is the message."""
    cases = [make_case("a100-80", label="head"), make_case("t4", label="worker")]
    judgement = _judge(Script(20 * GIB), *cases)
    assert judgement.decision is Decision.REJECT
    assert judgement.message.startswith("worker: does not fit on t4: needs 20.91 GiB")


def _missing(fault: Fault) -> Callable[[Step[Any]], Any]:
    def do(step: Step[Any]) -> Any:
        assert isinstance(step, AskEstimates)
        missing = MissingAnswer(fault=fault, why="why not", job_id="0" * 32)
        return dict.fromkeys(step.questions, missing)

    return do


def test_a_mistake_is_named_with_where_it_was_written() -> None:
    """A worker may find it, long after the description was read."""
    case = make_case("t4", label="spec.template", source="annotation memgate.dev/job")
    with pytest.raises(MistakeError) as found:
        run(judge_cases([case], Rules(policy=Policy())), _missing(Fault.CALLER))
    assert found.value.message == "spec.template: annotation memgate.dev/job: why not"


@pytest.mark.parametrize("fault", [Fault.JOB, Fault.UNSUPPORTED, Fault.OPERATOR, Fault.PASSING])
def test_without_an_estimate_there_is_nothing_more_to_ask(fault: Fault) -> None:
    """Whatever becomes of the job; the message ends with where to look."""
    strict = Policy(uncertain=Action.REJECT, unmeasured=Action.REJECT, unknown=Action.REJECT)
    judgement = run(judge_cases([make_case("t4")], Rules(policy=strict)), _missing(fault))
    assert judgement.action is Action.REJECT
    assert judgement.message.endswith(f": why not; see /ui/jobs/{'0' * 32}")


def test_an_object_asks_a_bounded_number_of_questions() -> None:
    """Each is work for a worker."""
    cases = [
        PlacedCase(job=_JOB.model_copy(update={"batch_size": size}), places=make_case("t4").places)
        for size in range(1, 40)
    ]
    with pytest.raises(InputError, match="this asks 39 questions"):
        _judge(Script(GIB), *cases)


def _two_steps() -> Judging[str]:
    try:
        yield from perform(AwaitAdvice([]))
    except MemgateError as error:
        caught = error.message
    batches = yield from perform(AskBatches({}))
    return f"{caught}, then {len(batches)}"


def _fail_first(step: Step[Any]) -> Any:
    if isinstance(step, AwaitAdvice):
        raise PassingError("away")
    return {}


def test_both_ways_to_run_a_sequence_are_alike() -> None:
    """An error in a step is the sequence's to handle; then it goes on."""

    async def fail_first(step: Step[Any]) -> Any:
        await anyio.lowlevel.checkpoint()
        return _fail_first(step)

    assert run(_two_steps(), _fail_first) == "away, then 0"
    assert anyio.run(run_async, _two_steps(), fail_first) == "away, then 0"
