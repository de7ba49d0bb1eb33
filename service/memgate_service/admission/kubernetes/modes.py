"""The policy for one review: who asks and where, what a decision leads to, and the record of it.

The mode is applied last, to the answer as ``enforce`` would give it: in ``warn`` and ``audit``
nothing is refused.
"""

from __future__ import annotations

from typing import Any

import msgspec

from memgate.decision import Decision
from memgate.near_names import find_near
from memgate_service.admission.core.judgement import Judgement
from memgate_service.admission.core.layers import PolicyLayers
from memgate_service.admission.core.policy import Action, Policy
from memgate_service.admission.core.rules import Mode, PolicyChoice, Subject
from memgate_service.admission.kubernetes.cases import PodCase, is_annotated
from memgate_service.admission.kubernetes.ends import RESERVED, USED
from memgate_service.admission.kubernetes.holding import HELD, SKIP_NAME
from memgate_service.admission.kubernetes.json_parts import JsonObject, as_object, find_part
from memgate_service.admission.kubernetes.objects import GPU, JOB, JOB_CONFIGMAP, find_pods
from memgate_service.admission.kubernetes.patches import ESTIMATE, ESTIMATE_ID, FILLED
from memgate_service.admission.kubernetes.places import asks_for_gpu, count_gpus
from memgate_service.admission.kubernetes.review import Review, WebhookAnswer
from memgate_service.admission.kubernetes.settings import AdmissionSettings, Shape

#: what people may write, and what we write
_WRITTEN = (JOB, JOB_CONFIGMAP, GPU)
_OURS = (*_WRITTEN, FILLED, ESTIMATE, ESTIMATE_ID, HELD, SKIP_NAME, USED, RESERVED)

#: refused for a mistake
WRONG = "wrong"
UNDESCRIBED = "undescribed"
EXEMPT = "exempt"

#: outcomes of an answer that the audit calls by another name, the same for every gate
DECISIONS = {Decision.UNKNOWN: "unanswered", WRONG: "bad_spec"}


def find_subject(review: Review) -> Subject:
    """Return who asks for an object, and where, as policies name it."""
    labels = as_object(_metadata(review).get("labels"))
    return Subject(
        user=review.user_info.username,
        group=review.user_info.groups,
        namespace=review.namespace,
        kind=review.kind.name,
        label={name: text for name, text in labels.items() if isinstance(text, str)},
    )


def is_silent(policy: PolicyLayers, review: Review) -> bool:
    """Say whether nobody wants to know now: the answer is for the audit alone."""
    return policy.choose(find_subject(review)).mode is Mode.AUDIT


def make_policy(settings: AdmissionSettings, chosen: PolicyChoice) -> Policy:
    """Return what decisions lead to: by the rule that applies, otherwise by the settings."""
    usual = settings.policy

    def action(decision: str, otherwise: Action) -> Action:
        return Action(chosen.on.get(decision, otherwise))

    uncertain = action("uncertain", usual.uncertain)
    return Policy(
        mistaken=action("bad_spec", usual.mistaken),
        rejected=action("reject", usual.rejected),
        uncertain=uncertain,
        unmeasured=uncertain,
        unknown=action("unanswered", usual.unknown),
    )


def apply_mode(answer: WebhookAnswer, chosen: PolicyChoice) -> WebhookAnswer:
    """Return what is answered in a mode: only ``enforce`` refuses, and ``audit`` says nothing."""
    done = "refused" if not answer.allowed else "held" if answer.is_held else "admitted"
    if chosen.mode is Mode.ENFORCE:
        return msgspec.structs.replace(answer, record=answer.record | {"done": done})
    if answer.notes.get("action") == Action.HOLD:  # nothing was held before we were asked
        done = "held"
    record = answer.record | {"done": "admitted"}
    warnings = answer.warnings
    if done != "admitted":
        record["would"] = done
        told = f"memgate only warns here; otherwise this would be {done}: "
        warnings = [told + answer.message.removeprefix("memgate: "), *warnings]
    if chosen.mode is Mode.AUDIT:
        warnings = ()
    return msgspec.structs.replace(answer, allowed=True, warnings=warnings, record=record)


def make_record(review: Review, chosen: PolicyChoice, answer: WebhookAnswer) -> dict[str, Any]:
    """Return the audit's record of a decision; empty if nothing was decided."""
    if not answer.outcome or review.dry_run:
        return {}
    metadata = _metadata(review)
    name = metadata.get("name") or metadata.get("generateName") or ""
    decision = DECISIONS.get(answer.outcome, answer.outcome)
    return answer.record | {
        "gate": "kubernetes",
        "user": review.user_info.username,
        "groups": review.user_info.groups,
        "namespace": review.namespace,
        "kind": review.kind.name,
        "name": str(name),
        "decision": str(decision),
        "mode": str(chosen.mode),
        "rule": chosen.rule,
        "why": answer.message.removeprefix("memgate: "),
    }


def describe(judgement: Judgement) -> dict[str, Any]:
    """Return what the audit says about the jobs of an object."""
    cases = [one.case for one in judgement.findings if isinstance(one.case, PodCase)]
    known = [one.known for one in judgement.findings if one.known is not None]
    gpus = dict.fromkeys(place.gpu.name for case in cases for place in case.places)
    record: dict[str, Any] = {"gpu": ",".join(gpus)}
    if cases:
        record["num_gpus"] = sum(count_gpus(case.pod) * case.pod.copies.number for case in cases)
    if known:
        record |= {"estimate": known[0].job_id, "page": known[0].page}
    return record


def find_near_misses(document: JsonObject, shape: Shape) -> list[str]:
    """Return warnings about annotations that look like ours and are not."""
    names = dict.fromkeys(
        name
        for place in ["", *(pod.pointer for pod in find_pods(document, shape))]
        for name in _annotations(document, place)
        if "memgate" in name.lower() and name not in _OURS
    )
    return [f"memgate: the annotation {name[:80]} has no effect{_hint(name)}" for name in names]


def _annotations(document: JsonObject, pointer: str) -> list[str]:
    inside: object = document
    for key in pointer.split("/")[1:]:
        inside = find_part(inside, key)
    metadata = as_object(as_object(inside).get("metadata"))
    return list(as_object(metadata.get("annotations")))


def _hint(name: str) -> str:
    short = name.rpartition("/")[2]
    near = find_near(short, {one.rpartition("/")[2] for one in _WRITTEN})
    return f": write memgate.dev/{near[0]}" if near else ""


def is_undescribed(review: Review, shape: Shape) -> bool:
    """Say whether somebody makes pods with GPUs and describes no job; not what a controller makes.

    By creating them, or by an edit: a GPU that comes later, an annotation that goes.
    """
    document, old = review.object or {}, review.old_object
    pods = find_pods(document, shape)
    if not any(map(asks_for_gpu, pods)) or any(map(is_annotated, pods)):
        return False
    if review.operation == "CREATE":
        return not _is_made_for_another(review)
    if review.operation != "UPDATE" or old is None or _metadata(review).get("deletionTimestamp"):
        return False
    before = find_pods(old, shape)
    had_job = not shape.is_fixed and any(map(is_annotated, before))
    return had_job or not any(map(asks_for_gpu, before))


def _is_made_for_another(review: Review) -> bool:
    """Say whether a controller makes this for another object, which was judged itself.

    Anybody may write an owner into what they make: the word of a person is not taken, nor that of
    a service account of the namespace, whose token is easily had there.
    """
    user = review.user_info.username
    is_own = user.startswith(f"system:serviceaccount:{review.namespace}:")
    is_controller = user.startswith("system:") and not is_own
    return is_controller and bool(_metadata(review).get("ownerReferences"))


def _metadata(review: Review) -> JsonObject:
    return as_object((review.object or {}).get("metadata"))
