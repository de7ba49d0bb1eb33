"""The doors that read a stranger's bytes, as functions of bytes that fail only on a defect of ours.

Whatever the bytes are, there is an answer, or an error whose fault is the caller's, the job's, or
that it is unsupported. Anything else that comes out of a target is a finding: another exception, a
replay that contradicts itself, an answer that breaks a rule. ``tests.fuzz.run`` looks for bytes
that do it; ``test_corpus.py`` passes every input through that was ever worth keeping.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader, BytesIO
from typing import Any

import anyio

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.errors import Fault, MemgateError, SimulationError
from memgate.gpus import CATALOGUE, GpuTarget
from memgate.jobspec import JobSpec, parse_job_spec
from memgate.report import Estimate
from memgate.schemas import EstimateCreate
from memgate.spec_text import read_job_bytes
from memgate_service.admission.core.answers import KnownAnswer
from memgate_service.admission.core.sequence import AskBatches, AskEstimates, AwaitAdvice, Step
from memgate_service.admission.kubernetes import gate
from memgate_service.admission.kubernetes.judging import ReadConfigMaps
from memgate_service.admission.kubernetes.review import read_review, write_review
from memgate_service.admission.kubernetes.settings import AdmissionSettings
from memgate_service.http.bodies import read_json
from memgate_service.http.errors import ProblemError
from memgate_worker.uploads.judging import judge
from memgate_worker.uploads.question import UploadQuestion
from tests.admission import make_estimate
from tests.timeline_files import pack_body

#: what an error on purpose may say about bytes that a stranger sent
_THEIRS = (Fault.CALLER, Fault.JOB, Fault.UNSUPPORTED)

_GPU = CATALOGUE["a100-80"]
_UPLOAD = UploadQuestion(target=GpuTarget(gpu=_GPU), max_bytes=1 << 24)

#: what the webhooks are told about every job
_KNOWN = KnownAnswer(job_id="j", estimate=make_estimate(1 << 30))
_REJECTED = KnownAnswer(job_id="r", estimate=make_estimate(1 << 40))
_GATES = tuple(
    AdmissionSettings(
        admission_gpus="t4,a100-80",
        admission_on_timeout=choice,
        admission_on_uncertain=choice,
    )
    for choice in ("admit", "hold")
)


def fuzz_trace(data: bytes) -> None:
    """A profiler trace: read, analysed, replayed, answered for."""
    _judge(data)


def fuzz_snapshot(data: bytes) -> None:
    """A memory snapshot, from the pickle to the answer."""
    _judge(data)


def fuzz_timeline(data: bytes) -> None:
    """A timeline file; what follows its header is packed here, or no change would survive."""
    _judge(pack_body(data))


def fuzz_settings(data: bytes) -> None:
    """A ``PYTORCH_ALLOC_CONF`` string."""
    with _their_fault():
        parse_alloc_conf(data.decode(errors="replace"))


def fuzz_spec(data: bytes) -> None:
    """A job spec in a file, JSON or YAML; what is accepted is accepted again, and is the same."""
    with _their_fault():
        spec = read_job_bytes(data)
        written = spec.model_dump(mode="json", exclude_unset=True)
        again = parse_job_spec(json.loads(json.dumps(written, allow_nan=False)))
        assert again == spec, "what was written is read as another spec"


def fuzz_question(data: bytes) -> None:
    """The body of ``POST /estimate``."""
    with _their_fault():
        asked = read_json(EstimateCreate, data)
        assert isinstance(asked.job, JobSpec)
        asked.model_dump_json()


def fuzz_webhook(data: bytes) -> None:
    """An AdmissionReview, through both webhooks; the answer is one that an API server can read."""
    with _their_fault():
        anyio.run(_review, data)


async def _review(data: bytes) -> None:
    review = read_review(data)
    for settings in _GATES:
        for decide in (gate.validate, gate.mutate):
            made = gate.WebhookGate(settings=settings, do=_answer_step)
            try:
                answer = await decide(made, review)
            except RecursionError:  # which the route answers as a mistake
                continue
            said = json.loads(write_review(review, answer))
            assert said["response"]["uid"] == review.uid
            json.dumps(answer.record, allow_nan=False)


async def _answer_step(step: Step[Any]) -> Any:
    match step:
        case ReadConfigMaps(_, references):
            return dict.fromkeys(references, "batch_size: 1")
        case AskEstimates(questions):
            known = (_KNOWN, _REJECTED)
            return {key: known[len(key) % 2] for key in questions}
        case AwaitAdvice() | AskBatches():
            return {}
    raise AssertionError(step)


def _judge(data: bytes) -> None:
    with _their_fault():
        answer = judge(BufferedReader(BytesIO(data)), _UPLOAD)
        Estimate.model_validate_json(answer.estimate.model_dump_json())


@contextmanager
def _their_fault() -> Iterator[None]:
    try:
        yield
    except ProblemError as error:
        if error.status >= 500:
            raise
    except MemgateError as error:
        if isinstance(error, SimulationError) or error.fault not in _THEIRS or not error.message:
            raise


TARGETS: dict[str, Callable[[bytes], None]] = {
    name.removeprefix("fuzz_"): target
    for name, target in list(globals().items())
    if name.startswith("fuzz_")
}
