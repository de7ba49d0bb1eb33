"""A review -> the answer to the API server. START READING HERE for a pod's way through the gate.

Two webhooks look at an object. ``mutate`` fills in what is missing and holds what has no answer
yet; ``validate`` lets in or refuses. What has no annotation of ours is let through at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from memgate.decision import Decision
from memgate.errors import InputError
from memgate_service.admission.core.judgement import Judgement
from memgate_service.admission.core.layers import PolicyLayers
from memgate_service.admission.core.policy import Action
from memgate_service.admission.core.rules import Mode, PolicyChoice
from memgate_service.admission.core.sequence import Rules, Step, run_async
from memgate_service.admission.kubernetes.cases import PodCase, is_annotated
from memgate_service.admission.kubernetes.holding import (
    REHEARSAL,
    SKIP_NAME,
    can_hold,
    can_hold_itself,
    follow,
    hold,
    is_held,
    is_stopped,
    keep_label,
    wait_again,
)
from memgate_service.admission.kubernetes.json_parts import JsonObject, as_object
from memgate_service.admission.kubernetes.judging import judge_pods
from memgate_service.admission.kubernetes.modes import (
    EXEMPT,
    UNDESCRIBED,
    WRONG,
    apply_mode,
    describe,
    find_near_misses,
    find_subject,
    is_undescribed,
    make_policy,
    make_record,
)
from memgate_service.admission.kubernetes.objects import SHAPES, find_pods
from memgate_service.admission.kubernetes.patches import (
    ESTIMATE,
    ESTIMATE_ID,
    Patch,
    as_written,
    fill,
    patched,
    take_back,
)
from memgate_service.admission.kubernetes.review import Review, WebhookAnswer
from memgate_service.admission.kubernetes.right_size import find_missing, write_note
from memgate_service.admission.kubernetes.settings import AdmissionSettings, Shape, split

_PASS = WebhookAnswer(allowed=True)

#: when to ask again for an answer that is not there yet
_RETRY_SECONDS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookGate:
    """What the webhooks need to judge an object."""

    settings: AdmissionSettings
    do: Callable[[Step[Any]], Awaitable[Any]]
    """Performs the steps of the sequence in the time available."""
    policy: PolicyLayers = field(default_factory=PolicyLayers)
    """What is in force now."""

    def choose(self, review: Review) -> PolicyChoice:
        """Return what the policy says about an object."""
        return self.policy.choose(find_subject(review))

    async def judge(
        self,
        review: Review,
        document: JsonObject,
        shape: Shape,
        chosen: PolicyChoice,
        *,
        is_final: bool,
    ) -> Judgement | None:
        """Judge an object by its pods; None if none of them has a job of ours.

        Raises:
            InputError: if what a person wrote about a job is wrong.
        """
        policy = make_policy(self.settings, chosen)
        rules = Rules(policy=policy, cluster=self.settings.gpus)
        pods = find_pods(document, shape)
        return await run_async(
            judge_pods(review.namespace, pods, rules, is_final=is_final), self.do
        )


async def validate(gate: WebhookGate, review: Review) -> WebhookAnswer:
    """Let an object in, or refuse it; then see what the policy's mode makes of that."""
    chosen = gate.choose(review)
    answer = apply_mode(await _validate(gate, review, chosen), chosen)
    return msgspec.structs.replace(answer, record=make_record(review, chosen, answer))


async def _validate(gate: WebhookGate, review: Review, chosen: PolicyChoice) -> WebhookAnswer:
    # 1. What is it, and is it ours to look at?
    shape = _shape(gate, review)
    document = review.object
    if shape is None or document is None:
        return _PASS
    if chosen.is_exempt:
        is_decided = _is_new(review, shape) or is_undescribed(review, shape)
        return WebhookAnswer(allowed=True, outcome=EXEMPT) if is_decided else _PASS
    if _loses_its_job(gate, review, shape) and not _may_release(gate, review):
        return WebhookAnswer(allowed=False, message=_KEEPS, outcome=WRONG)
    if not _is_new(review, shape):
        return _pass_undescribed(review, shape, chosen)
    # 2. What is known about the jobs in it?
    try:
        is_final = chosen.mode is not Mode.AUDIT  # what would fit is for people
        judgement = await gate.judge(review, document, shape, chosen, is_final=is_final)
    except InputError as error:
        allowed = make_policy(gate.settings, chosen).mistaken is Action.ADMIT
        message = f"memgate: {error.message}"
        warnings = [message] if allowed else []
        return WebhookAnswer(allowed=allowed, message=message, warnings=warnings, outcome=WRONG)
    if judgement is None:
        return _PASS
    # 3. What does the policy say about it?
    return _answer(gate, review, document, shape, judgement)


_UNDESCRIBED = (
    "memgate: what asks for a GPU needs a description here: the annotation memgate.dev/job;"
    " `memgate init` makes one of a script"
)


_REHEARSED = (
    "memgate: it has no description, so it is run once without a GPU first, and held for some"
    " minutes at most; the annotation memgate.dev/rehearsal: skip leaves that out"
)


def _is_to_rehearse(gate: WebhookGate, review: Review, shape: Shape, chosen: PolicyChoice) -> bool:
    """Say whether an object is new, has no description, and is to be run once before."""
    if not gate.settings.rehearsal_image or review.dry_run or review.operation != "CREATE":
        return False
    if chosen.is_exempt or chosen.on.get("undescribed") != "rehearse":
        return False
    annotations = as_object(as_object((review.object or {}).get("metadata")).get("annotations"))
    return annotations.get(SKIP_NAME) != "skip" and is_undescribed(review, shape)


def _pass_undescribed(review: Review, shape: Shape, chosen: PolicyChoice) -> WebhookAnswer:
    """Count what has a GPU and no description; it is refused where the policy says so."""
    warnings = _unchecked(review, shape)
    if review.operation == "CREATE":
        warnings = [*warnings, *find_near_misses(review.object or {}, shape)]
    if not is_undescribed(review, shape):
        return WebhookAnswer(allowed=True, warnings=warnings)
    action = chosen.on.get("undescribed", "admit")
    allowed = action != "reject"
    message = "" if allowed else _UNDESCRIBED
    near = {"near_miss": warnings[0]} if warnings else {}
    if action == "rehearse" and is_stopped(review.object or {}, shape):
        return WebhookAnswer(
            allowed=True,
            message=_REHEARSED,
            warnings=[_REHEARSED, *warnings],
            outcome=UNDESCRIBED,
            record=near,
            is_held=True,
        )
    return WebhookAnswer(
        allowed=allowed, message=message, warnings=warnings, outcome=UNDESCRIBED, record=near
    )


async def mutate(gate: WebhookGate, review: Review) -> WebhookAnswer:
    """Fill in what an object lacks; hold it if there is no answer and the policy says so."""
    shape = _shape(gate, review)
    document = review.object
    if shape is None or document is None:
        return _PASS
    if review.operation == "UPDATE" and _is_no_longer_ours(document, shape):
        return WebhookAnswer(allowed=True, patch=take_back(document))
    chosen = gate.choose(review)
    if chosen.mode is not Mode.ENFORCE:  # nothing is changed where nothing is enforced
        return _PASS
    if _is_to_rehearse(gate, review, shape, chosen) and can_hold_itself(document, shape):
        return WebhookAnswer(allowed=True, patch=hold(document, shape, REHEARSAL))
    if not _is_new(review, shape):
        return WebhookAnswer(allowed=True, patch=keep_label(document, review.old_object, shape))
    try:
        judgement = await gate.judge(review, as_written(document), shape, chosen, is_final=False)
        if judgement is None:
            return _PASS
        patch = _patch(gate, review, document, shape, judgement)
        if _is_to_follow(review, judgement, chosen):
            patch += follow(patched(document, patch), shape)
    except InputError:
        return _PASS  # validate says what is wrong with it
    # what happens to it validate says, which may know more by then; but for an edit that is undone
    is_undone = _is_release(review, shape) and is_held(patched(document, patch), shape)
    return WebhookAnswer(
        allowed=True, patch=patch, warnings=[_held(judgement)] if is_undone else []
    )


def _is_to_follow(review: Review, judgement: Judgement, chosen: PolicyChoice) -> bool:
    """Say whether something is let in without an answer that is stopped if it does not fit."""
    is_open = judgement.decision is Decision.UNKNOWN and judgement.action is Action.ADMIT
    return is_open and review.operation == "CREATE" and chosen.on.get("late") == "reject"


def _is_no_longer_ours(document: JsonObject, shape: Shape) -> bool:
    """Say whether an object no longer has a job, and can still be changed."""
    return not shape.is_fixed and not any(map(is_annotated, find_pods(document, shape)))


def _patch(
    gate: WebhookGate, review: Review, document: JsonObject, shape: Shape, judgement: Judgement
) -> Patch:
    """Return what is changed in an object."""
    patch: Patch = []
    if review.operation == "CREATE" or not shape.is_fixed:
        patch = fill(document, *_fillings(gate, judgement))
    if is_stopped(document, shape):
        return patch + wait_again(patched(document, patch), shape)
    is_to_be = judgement.action is Action.HOLD and not is_held(document, shape)
    if is_to_be and can_hold(document, review.old_object, shape):
        patch += hold(patched(document, patch), shape)
    return patch


def _shape(gate: WebhookGate, review: Review) -> Shape | None:
    name = review.kind.name
    return gate.settings.admission_paths.get(name) or SHAPES.get(name)


def _is_new(review: Review, shape: Shape) -> bool:
    """Say whether anything that an answer depends on has changed; other edits are let through."""
    document, old = review.object or {}, review.old_object
    pods = find_pods(document, shape)
    if not any(map(is_annotated, pods)):
        return False
    if review.operation != "UPDATE" or old is None:
        return review.operation == "CREATE"
    if _is_being_deleted(document):
        return False
    return pods != find_pods(old, shape) or _is_release(review, shape)


def _is_being_deleted(document: JsonObject) -> bool:
    return "deletionTimestamp" in as_object(document.get("metadata"))


_KEEPS = (
    "memgate: the annotation memgate.dev/job must stay while this is held or suspended; change it,"
    " or delete the object and create it without"
)


def _loses_its_job(gate: WebhookGate, review: Review, shape: Shape) -> bool:
    """Say whether an edit takes the job away from something that is held or suspended."""
    old, new = review.old_object, review.object or {}
    policy = make_policy(gate.settings, gate.choose(review))
    if Action.HOLD not in (policy.unknown, policy.uncertain, policy.rejected, policy.mistaken):
        return False
    if (
        review.operation != "UPDATE"
        or old is None
        or _is_being_deleted(new)
        or not is_stopped(old, shape)
    ):
        return False
    kept = {pod.pointer for pod in find_pods(new, shape) if is_annotated(pod)}
    return any(is_annotated(pod) and pod.pointer not in kept for pod in find_pods(old, shape))


def _unchecked(review: Review, shape: Shape) -> list[str]:
    """Warn about an annotation that has no effect, on something that describes no pods."""
    document = review.object or {}
    (itself,) = find_pods(document, SHAPES["Pod"])
    if review.operation != "CREATE" or find_pods(document, shape) or not is_annotated(itself):
        return []
    return ["memgate: not checked: this describes no pods, or they are described elsewhere"]


def _answer(
    gate: WebhookGate, review: Review, document: JsonObject, shape: Shape, judgement: Judgement
) -> WebhookAnswer:
    message = f"memgate: {judgement.message}"
    is_unknown = judgement.decision is Decision.UNKNOWN
    allowed, warnings, is_now_held = False, [], False
    if judgement.action is Action.ADMIT:
        allowed, warnings = True, judgement.warnings
    elif judgement.action is Action.HOLD and is_held(document, shape):
        allowed, warnings, is_now_held = True, [_held(judgement)], True
    elif _is_release(review, shape) and _may_release(gate, review):
        allowed, warnings = True, [f"memgate: released by hand: {judgement.message}"]
    elif review.dry_run and is_unknown:  # and there will be no answer
        allowed, warnings = True, [message]
    retry = _RETRY_SECONDS if is_unknown and not allowed else None
    return WebhookAnswer(
        allowed=allowed,
        message=message if retry is None else f"{message}; try again in {retry} s",
        code=403 if retry is None else 429,
        retry_seconds=retry,
        warnings=warnings,
        outcome=judgement.decision,
        notes=_notes(judgement),
        is_held=is_now_held,
        record=describe(judgement),
    )


def _held(judgement: Judgement) -> str:
    if judgement.decision is Decision.UNKNOWN:
        return f"memgate: held until there is an answer: {judgement.message}"
    return (
        f"memgate: held until it is changed, or released by somebody who may: {judgement.message}"
    )


def _is_release(review: Review, shape: Shape) -> bool:
    """Say whether an edit releases something that was held."""
    old, new = review.old_object, review.object
    return old is not None and is_held(old, shape) and not is_held(new or {}, shape)


def _may_release(gate: WebhookGate, review: Review) -> bool:
    names = {review.user_info.username, *review.user_info.groups}
    return bool(names & set(split(gate.settings.admission_releasers)))


def _fillings(gate: WebhookGate, judgement: Judgement) -> tuple[dict[str, Any], Mapping[str, str]]:
    """Return what to fill in, and the annotations that say what it is based on."""
    known = [
        (one.case, one.known)
        for one in judgement.findings
        if one.known is not None and isinstance(one.case, PodCase)
    ]
    if not known or judgement.decision is Decision.REJECT:
        return {}, {}
    filled: dict[str, Any] = {}
    for case, answer in known:
        filled |= find_missing(case, answer.estimate, gate.settings)
    case, answer = known[0]
    return filled, {ESTIMATE: write_note(case, answer), ESTIMATE_ID: answer.job_id}


def _notes(judgement: Judgement) -> dict[str, str]:
    ids = [one.known.job_id for one in judgement.findings if one.known is not None]
    notes = {"outcome": str(judgement.decision), "action": str(judgement.action)}
    return notes | ({"estimates": ",".join(dict.fromkeys(ids))} if ids else {})
