"""Objects that wait for their answer: held when they are created, released when it arrives.

A pod is held by a scheduling gate. A job is held by ``suspend``, unless Kueue uses that itself.
An object with neither (a Deployment) is created, and its pods are held: their template gets our
annotation.
"""

from __future__ import annotations

import copy
from typing import Any

from memgate_service.admission.kubernetes.json_parts import JsonObject, as_list, as_object, escape
from memgate_service.admission.kubernetes.objects import JOB, JOB_CONFIGMAP, find_pods, is_set
from memgate_service.admission.kubernetes.patches import Patch, put
from memgate_service.admission.kubernetes.settings import Shape

GATE = "memgate.dev/estimate"

#: a label, so that the controller need not look at every object
HELD = "memgate.dev/held"
HELD_POINTER = f"/metadata/labels/{escape(HELD)}"

#: the label of what was let in without an answer, where a policy says ``late: reject``
LATE = "memgate.dev/late"
_LATE_POINTER = f"/metadata/labels/{escape(LATE)}"

#: value of the label while something waits for its rehearsal, and the annotation that opts out
REHEARSAL = "rehearsal"
SKIP_NAME = "memgate.dev/rehearsal"

_GATES = "/spec/schedulingGates"

#: Kueue starts and stops what has this label by its ``suspend``
_KUEUE = "kueue.x-k8s.io/queue-name"


def is_held(document: JsonObject, shape: Shape) -> bool:
    """Say whether no part of an object runs until it, or its pods, are released."""
    if _is_pod(shape) or is_stopped(document, shape):
        return is_stopped(document, shape)
    pods_are_asked = all(pod.is_template for pod in find_pods(document, shape))
    is_told = pods_are_asked and not _missing_annotations(document, shape)
    return is_told and not _can_suspend(document, shape)


def is_stopped(document: JsonObject, shape: Shape) -> bool:
    """Say whether an object itself is stopped: by our gate, or by ``suspend``."""
    if _is_pod(shape):
        return _gate_index(document) is not None
    return shape.suspend is not None and is_set(document, shape.suspend)


def can_hold(document: JsonObject, old: JsonObject | None, shape: Shape) -> bool:
    """Say whether an object, new or changed from an old one, may be held.

    Running objects are left running: suspending them would end their pods. A pod that exists, or
    has its node, cannot be given a gate.
    """
    if old is not None:
        return is_stopped(old, shape) if _is_pod(shape) or shape.suspend is not None else True
    return not (_is_pod(shape) and as_object(document.get("spec")).get("nodeName"))


def hold(document: JsonObject, shape: Shape, value: str = "waiting") -> Patch:
    """Return the patch that holds an object, or the pods that it will create."""
    patch: Patch = []
    changed: dict[str, Any] = copy.deepcopy(dict(document))
    if _is_pod(shape):
        gates = [*as_list(as_object(document.get("spec")).get("schedulingGates")), {"name": GATE}]
        put(changed, patch, _GATES, gates)
    elif _can_suspend(document, shape):
        assert shape.suspend is not None
        put(changed, patch, shape.suspend, True)
    else:
        for pointer, text in _missing_annotations(document, shape).items():
            put(changed, patch, pointer, text)
        return patch  # its pods get the label
    put(changed, patch, HELD_POINTER, value)
    return patch


def can_hold_itself(document: JsonObject, shape: Shape) -> bool:
    """Say whether an object itself can be held: by a gate, or by a ``suspend`` that is not Kueue's.

    A pod that names its node cannot be.
    """
    if _is_pod(shape):
        return not as_object(document.get("spec")).get("nodeName")
    return _can_suspend(document, shape)


def release(document: JsonObject, shape: Shape) -> Patch:
    """Return the patch that releases a held object; it fails if the object has changed."""
    patch: Patch = []
    index = _gate_index(document) if _is_pod(shape) else None
    if index is not None:
        place = f"{_GATES}/{index}"
        patch += [
            {"op": "test", "path": f"{place}/name", "value": GATE},
            {"op": "remove", "path": place},
        ]
    elif shape.suspend is not None and is_set(document, shape.suspend):
        patch.append({"op": "replace", "path": shape.suspend, "value": False})
    if HELD in _labels(document):
        patch.append({"op": "remove", "path": HELD_POINTER})
    return patch


def mark(document: JsonObject, value: str) -> Patch:
    """Return the patch that labels an object with why it stays held."""
    patch: Patch = []
    put(copy.deepcopy(dict(document)), patch, HELD_POINTER, value)
    return patch


def follow(document: JsonObject, shape: Shape) -> Patch:
    """Return the patch by which the controller finds an object again, if it can be suspended."""
    patch: Patch = []
    if _can_suspend(document, shape):
        put(copy.deepcopy(dict(document)), patch, _LATE_POINTER, "waiting")
    return patch


def unfollow(document: JsonObject) -> Patch:
    """Return the patch that takes that label away."""
    return [{"op": "remove", "path": _LATE_POINTER}] if LATE in _labels(document) else []


def wait_again(document: JsonObject, shape: Shape) -> Patch:
    """Return the patch that makes the controller check an object again that it refused."""
    is_refused = is_stopped(document, shape) and _labels(document).get(HELD) is not None
    return mark(document, "waiting") if is_refused else []


def keep_label(document: JsonObject, old: JsonObject | None, shape: Shape) -> Patch:
    """Return the patch that puts our label back while an object is stopped.

    Without it the controller would not find the object, which would wait for ever.
    """
    label = _labels(old or {}).get(HELD)
    is_lost = label is not None and HELD not in _labels(document)
    return mark(document, str(label)) if is_lost and is_stopped(document, shape) else []


def _is_pod(shape: Shape) -> bool:
    return shape.templates == ("",)


def _can_suspend(document: JsonObject, shape: Shape) -> bool:
    return shape.suspend is not None and _KUEUE not in _labels(document)


def _labels(document: JsonObject) -> JsonObject:
    return as_object(as_object(document.get("metadata")).get("labels"))


def _gate_index(document: JsonObject) -> int | None:
    gates = as_list(as_object(document.get("spec")).get("schedulingGates"))
    names = [as_object(gate).get("name") for gate in gates]
    return names.index(GATE) if GATE in names else None


def _missing_annotations(document: JsonObject, shape: Shape) -> dict[str, str]:
    """Return the annotations that templates lack for their pods to be held, by pointer."""
    bare = {**document, "metadata": {}}
    own = {pod.pointer: pod.annotations for pod in find_pods(bare, shape)}
    return {
        f"{pod.pointer}/metadata/annotations/{escape(name)}": pod.annotations[name]
        for pod in find_pods(document, shape)
        if pod.is_template
        for name in (JOB, JOB_CONFIGMAP)
        if name in pod.annotations and name not in own[pod.pointer]
    }
