"""A review -> what the API server is told. START READING HERE for a pod's way through the gate.

Two webhooks look at an object. ``mutate`` fills in what is missing and holds what has no answer
yet; ``validate`` lets in or refuses. What has no annotation of ours is passed on at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import msgspec

from memgate.contract import Work
from memgate.errors import InputError
from memgate.gpus import GpuSpec
from memgate_service.admission.core.asking import Patience, ask_all, ask_batches, await_advice
from memgate_service.admission.core.judgement import (
    RETRY_SECONDS,
    Finding,
    Judgement,
    Outcome,
    Said,
    find,
    judge,
)
from memgate_service.admission.core.settings import Shape, split
from memgate_service.admission.kubernetes.cases import Case, find_cases, is_annotated, references
from memgate_service.admission.kubernetes.cluster import ClusterError
from memgate_service.admission.kubernetes.holding import (
    can_hold,
    hold,
    is_held,
    is_stopped,
    wait_again,
)
from memgate_service.admission.kubernetes.objects import (
    JOB_CONFIGMAP,
    SHAPES,
    JsonObject,
    as_object,
    find_pods,
)
from memgate_service.admission.kubernetes.patches import (
    ESTIMATE,
    ESTIMATE_ID,
    Patch,
    as_written,
    fill,
    patched,
    take_back,
)
from memgate_service.admission.kubernetes.review import Answer, Review
from memgate_service.admission.kubernetes.right_size import as_annotation, find_missing
from memgate_service.http.dependencies import Parts

_PASS = Answer(allowed=True)

#: for one object: its jobs, on the generations of GPUs that it may come to
_MAX_QUESTIONS = 32


async def validate(parts: Parts, review: Review, patience: Patience) -> Answer:
    """Let an object in, or refuse it."""
    # 1. What is it, and is it ours to look at?
    shape = _shape(parts, review)
    document = review.object
    if shape is None or document is None:
        return _PASS
    if _loses_its_job(parts, review, shape) and not _may_release(parts, review):
        return _counted(parts, Answer(allowed=False, message=_KEEPS), "wrong")
    if not _is_new(review, shape):
        return Answer(allowed=True, warnings=_unchecked(review, shape))
    # 2. What is known of the jobs in it?
    try:
        judgement = await _judge(parts, review, document, shape, patience, is_final=True)
    except InputError as error:
        return _counted(parts, Answer(allowed=False, message=f"memgate: {error.message}"), "wrong")
    if judgement is None:
        return _PASS
    # 3. What the policy makes of it.
    return _counted(
        parts, _answer(parts, review, document, shape, judgement), judgement.outcome.name.lower()
    )


async def mutate(parts: Parts, review: Review, patience: Patience) -> Answer:
    """Fill in what an object lacks; hold it if the policy is to, and there is no answer."""
    shape = _shape(parts, review)
    document = review.object
    if shape is None or document is None:
        return _PASS
    if review.operation == "UPDATE" and _is_no_longer_ours(document, shape):
        return Answer(allowed=True, patch=take_back(document))
    if not _is_new(review, shape):
        return _PASS
    try:
        judgement = await _judge(parts, review, as_written(document), shape, patience)
        if judgement is None:
            return _PASS
        patch, is_now_held = _patch(parts, review, document, shape, judgement)
        return Answer(allowed=True, patch=patch, warnings=[_held(judgement)] if is_now_held else [])
    except InputError:
        return _PASS  # validate says what is wrong with it


def _is_no_longer_ours(document: JsonObject, shape: Shape) -> bool:
    """Say whether an object has no job any more, and could still be changed."""
    return not shape.is_fixed and not any(map(is_annotated, find_pods(document, shape)))


def _patch(
    parts: Parts, review: Review, document: JsonObject, shape: Shape, judgement: Judgement
) -> tuple[Patch, bool]:
    """Return how an object shall be changed, and whether that holds it."""
    patch: Patch = []
    if review.operation == "CREATE" or not shape.is_fixed:
        patch = fill(document, *_fillings(parts, judgement))
    if is_stopped(document, shape):
        return patch + wait_again(patched(document, patch), shape), False
    is_to_be = judgement.action == "hold" and not is_held(document, shape)
    if is_to_be and can_hold(document, review.old_object, shape):
        patch += hold(patched(document, patch), shape)
        return patch, True
    return patch, False


def _shape(parts: Parts, review: Review) -> Shape | None:
    name = review.kind.name
    return parts.settings.admission_paths.get(name) or SHAPES.get(name)


def _is_new(review: Review, shape: Shape) -> bool:
    """Say whether what an answer depends on is new; else nobody is kept from editing the rest."""
    document, old = review.object or {}, review.old_object
    pods = find_pods(document, shape)
    if not any(map(is_annotated, pods)):
        return False
    if review.operation != "UPDATE" or old is None:
        return review.operation == "CREATE"
    if _is_going(document):
        return False
    return pods != find_pods(old, shape) or _is_release(review, shape)


def _is_going(document: JsonObject) -> bool:
    return "deletionTimestamp" in as_object(document.get("metadata"))


_KEEPS = (
    "memgate: the annotation memgate.dev/job must stay while this is held or suspended; change it,"
    " or delete the object and make it without"
)


def _loses_its_job(parts: Parts, review: Review, shape: Shape) -> bool:
    """Say whether something that stands still shall be none of our business any more."""
    old, new = review.old_object, review.object or {}
    settings = parts.settings
    if "hold" not in (settings.admission_on_timeout, settings.admission_on_uncertain):
        return False
    if review.operation != "UPDATE" or old is None or _is_going(new) or not is_stopped(old, shape):
        return False
    kept = {pod.pointer for pod in find_pods(new, shape) if is_annotated(pod)}
    return any(is_annotated(pod) and pod.pointer not in kept for pod in find_pods(old, shape))


def _unchecked(review: Review, shape: Shape) -> list[str]:
    """Warn of an annotation on something that describes no pods: nothing comes of it."""
    document = review.object or {}
    (itself,) = find_pods(document, SHAPES["Pod"])
    if review.operation != "CREATE" or find_pods(document, shape) or not is_annotated(itself):
        return []
    return ["memgate: not checked: this describes no pods, or they are described elsewhere"]


async def _judge(
    parts: Parts,
    review: Review,
    document: JsonObject,
    shape: Shape,
    patience: Patience,
    *,
    is_final: bool = False,
) -> Judgement | None:
    """Find out what is known of every pod of an object; if that is final, also what would fit.

    Raises:
        InputError: if what a person wrote about a job is wrong.
    """
    start = anyio.current_time()
    cluster = parts.settings.gpus
    pods = find_pods(document, shape)
    try:
        texts = await parts.config_maps.read(review.namespace, references(pods), patience.limit)
    except ClusterError as error:
        message = f"annotation {JOB_CONFIGMAP} cannot be looked up: {error.message}"
        finding = Finding(outcome=Outcome.NO_ANSWER, message=message)
        return judge([finding], parts.settings)
    cases = find_cases(pods, texts, cluster)
    asked, works = _questions(cases)
    left = patience.after(anyio.current_time() - start)
    said = await ask_all(parts, works, left, is_dry_run=review.dry_run)
    if not cases:
        return None
    judgement = judge(_find_all(cases, asked, said, cluster), parts.settings)
    if not is_final:
        return judgement
    awaited = judgement.awaited_advice()
    if awaited and not review.dry_run:
        left = patience.after(anyio.current_time() - start)
        said |= await await_advice(parts, awaited, left)
        judgement = judge(_find_all(cases, asked, said, cluster), parts.settings)
    # Somebody looks for what is still awaited: another question would have the same runs made.
    works = {} if judgement.awaited_advice() else judgement.batch_questions()
    if works:
        left = patience.after(anyio.current_time() - start)
        found = await ask_batches(parts, works, left, is_dry_run=review.dry_run)
        judgement = judgement.with_batches(found, cluster)
    return judgement


def _questions(cases: Sequence[Case]) -> tuple[list[dict[str, str]], dict[str, Work]]:
    """Return the ids of each case's questions, by generation of GPU, and all questions by id.

    Raises:
        InputError: if there are too many.
    """
    works: dict[str, Work] = {}
    asked: list[dict[str, str]] = []
    for case in cases:
        questions = case.questions()
        asked.append({generation: work.id() for generation, work in questions.items()})
        works |= zip(asked[-1].values(), questions.values(), strict=True)
    if len(works) > _MAX_QUESTIONS:
        number = f"{len(works)} questions, by its jobs and the kinds of GPU it names"
        raise InputError(f"this asks {number}; an object may ask {_MAX_QUESTIONS}")
    return asked, works


def _find_all(
    cases: Sequence[Case],
    asked: Sequence[Mapping[str, str]],
    said: Mapping[str, Said],
    cluster: tuple[GpuSpec, ...],
) -> list[Finding]:
    """Say of each case what the answers to its questions, by generation of GPU, say."""
    return [
        find(case, {generation: said[job_id] for generation, job_id in ids.items()}, cluster)
        for case, ids in zip(cases, asked, strict=True)
    ]


def _answer(
    parts: Parts, review: Review, document: JsonObject, shape: Shape, judgement: Judgement
) -> Answer:
    notes = _notes(judgement)
    if judgement.action == "admit":
        return Answer(allowed=True, warnings=judgement.warnings, notes=notes)
    if judgement.action == "hold" and is_held(document, shape):
        return Answer(allowed=True, warnings=[_held(judgement)], notes=notes)
    if _is_release(review, shape) and _may_release(parts, review):
        warning = f"memgate: released by hand: {judgement.message}"
        return Answer(allowed=True, warnings=[warning], notes=notes)
    message = f"memgate: {judgement.message}"
    if review.dry_run and judgement.outcome is Outcome.NO_ANSWER:  # nor will there be one
        return Answer(allowed=True, warnings=[message], notes=notes)
    if judgement.outcome is not Outcome.NO_ANSWER:
        return Answer(allowed=False, message=message, notes=notes)
    return Answer(
        allowed=False,
        message=f"{message}; try again in {RETRY_SECONDS} s",
        code=429,
        retry_seconds=RETRY_SECONDS,
        notes=notes,
    )


def _held(judgement: Judgement) -> str:
    if judgement.outcome is Outcome.NO_ANSWER:
        return f"memgate: held until there is an answer: {judgement.message}"
    return (
        f"memgate: held until it is changed, or somebody who may releases it: {judgement.message}"
    )


def _is_release(review: Review, shape: Shape) -> bool:
    """Say whether something that was held is not any more."""
    old, new = review.old_object, review.object
    return old is not None and is_held(old, shape) and not is_held(new or {}, shape)


def _may_release(parts: Parts, review: Review) -> bool:
    who = {review.user_info.username, *review.user_info.groups}
    return bool(who & set(split(parts.settings.admission_releasers)))


def _fillings(parts: Parts, judgement: Judgement) -> tuple[dict[str, Any], Mapping[str, str]]:
    """Return what to fill in, and the annotations that tell of the estimate."""
    known = [
        (one.case, one.known) for one in judgement.findings if one.known is not None and one.case
    ]
    if not known or judgement.outcome is Outcome.REJECT:
        return {}, {}
    filled: dict[str, Any] = {}
    for case, answer in known:
        filled |= find_missing(case, answer.estimate, parts.settings)
    case, answer = known[0]
    told = as_annotation(answer.job_id, _gpu_name(case), answer.estimate)
    return filled, {
        ESTIMATE: msgspec.json.encode(told).decode(),
        ESTIMATE_ID: answer.job_id,
    }


def _gpu_name(case: Case) -> str:
    return ",".join(place.gpu.name for place in case.places)


def _notes(judgement: Judgement) -> dict[str, str]:
    ids = [one.known.job_id for one in judgement.findings if one.known is not None]
    notes = {"outcome": judgement.outcome.name.lower(), "action": judgement.action}
    return notes | ({"estimates": ",".join(dict.fromkeys(ids))} if ids else {})


def _counted(parts: Parts, answer: Answer, outcome: str) -> Answer:
    parts.metrics.admissions.labels(outcome, "yes" if answer.allowed else "no").inc()
    return answer
