"""Values and where they belong in an object -> the JSON Patch (RFC 6902) that sets them.

What we write is recorded in an annotation of the object, so that it can be told apart from what a
person wrote, changed when the answer changes, and removed again: ``take_back``.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

import msgspec

from memgate.errors import InputError
from memgate_service.admission.kubernetes.json_parts import JsonObject, as_object, escape, unescape

#: what was filled in: an object of JSON pointers and values
FILLED = "memgate.dev/filled"
ESTIMATE = "memgate.dev/estimate"
ESTIMATE_ID = "memgate.dev/estimate-id"

#: everything that is ever filled in: anybody can write that annotation, and we remove what it names
_FILLABLE = re.compile(
    r"/.*/limits/(nvidia\.com~1gpumem|nvidia\.com~1mig-[^/]+|volcano\.sh~1vgpu-memory)"
    r"|/.*/nodeSelector/nvidia\.com~1gpu\.product"
    r"|(/.*)?/metadata/annotations/gpu-memory"
)

Patch = list[dict[str, Any]]

_INDEX = re.compile("0|[1-9][0-9]{0,8}")

#: nothing is there; null would be a value
_NOTHING = object()


def annotation(name: str) -> str:
    """Return the pointer to an annotation of an object."""
    return f"/metadata/annotations/{escape(name)}"


def as_written(document: JsonObject) -> JsonObject:
    """Return an object as a person wrote it: without what we filled in, unless it was changed."""
    ours = _filled(document)
    if not ours:
        return document
    written = copy.deepcopy(dict(document))
    for pointer, value in ours.items():
        if _look_up(written, pointer) == value:
            _apply(written, {"op": "remove", "path": pointer})
    return written


def take_back(document: JsonObject) -> Patch:
    """Return the patch that removes everything we wrote into an object."""
    return fill(document, {}, {})


def fill(document: JsonObject, filled: Mapping[str, Any], annotations: Mapping[str, str]) -> Patch:
    """Return the patch that sets these values and annotations and removes older ones of ours."""
    wanted: dict[str, Any] = dict(filled)
    notes = dict(annotations)
    if filled:
        notes[FILLED] = msgspec.json.encode(dict(sorted(filled.items()))).decode()
    wanted |= {annotation(name): text for name, text in notes.items()}
    ours = dict(_filled(document))
    for name in (FILLED, ESTIMATE, ESTIMATE_ID):
        ours[annotation(name)] = _look_up(document, annotation(name))
    stale = [
        pointer
        for pointer, value in ours.items()
        if pointer not in wanted and value is not _NOTHING and _look_up(document, pointer) == value
    ]
    changed = copy.deepcopy(dict(document))
    patch: Patch = []
    for pointer in stale:
        if _look_up(changed, pointer) is not _NOTHING:  # one target may be written in two ways
            _step(changed, patch, {"op": "remove", "path": pointer})
    for pointer, value in wanted.items():
        put(changed, patch, pointer, value)
    return patch


def put(changed: dict[str, Any], patch: Patch, pointer: str, value: Any) -> None:
    """Add steps that set a value, and its parents, to a patch; ``changed`` changes likewise."""
    if _look_up(changed, pointer) == value:
        return
    parts = pointer[1:].split("/")
    for length in range(1, len(parts)):
        parent = "/" + "/".join(parts[:length])
        if _look_up(changed, parent) in (_NOTHING, None):
            _step(changed, patch, {"op": "add", "path": parent, "value": {}})
    _step(changed, patch, {"op": "add", "path": pointer, "value": value})


def patched(document: JsonObject, patch: Patch) -> JsonObject:
    """Return an object as a patch of ours leaves it."""
    changed = copy.deepcopy(dict(document))
    for step in patch:
        _apply(changed, copy.deepcopy(step))
    return changed


def _step(changed: dict[str, Any], patch: Patch, step: dict[str, Any]) -> None:
    _apply(changed, copy.deepcopy(step))
    patch.append(step)


def _filled(document: JsonObject) -> dict[str, Any]:
    """Read what we recorded; what cannot be read counts as nothing."""
    text = _look_up(document, annotation(FILLED))
    try:
        noted = msgspec.json.decode(text) if isinstance(text, str) else {}
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}
    found = as_object(noted).items()
    return {pointer: value for pointer, value in found if _FILLABLE.fullmatch(pointer)}


def _look_up(document: Any, pointer: str) -> Any:
    """Return the value at a pointer; ``_NOTHING`` if there is none."""
    for part in pointer[1:].split("/"):
        key = unescape(part)
        if isinstance(document, dict):
            document = document.get(key, _NOTHING)
        elif isinstance(document, list) and _INDEX.fullmatch(key) and int(key) < len(document):
            document = document[int(key)]
        else:
            return _NOTHING
    return document


def _apply(document: dict[str, Any], step: Mapping[str, Any]) -> None:
    """Do one step of a patch; the parent of its target exists.

    Raises:
        InputError: if that parent is not what the target is in: an object, or a list for a number.
    """
    parent, _, last = step["path"].rpartition("/")
    key = unescape(last)
    inside = _look_up(document, parent) if parent else document
    if isinstance(inside, list):
        if key != "-" and not _INDEX.fullmatch(key):
            raise InputError(f"{step['path']} cannot be set: {parent} is a list, not an object")
        index = len(inside) if key == "-" else int(key)
        if step["op"] == "remove":
            inside.pop(index)
        else:
            inside.insert(index, step["value"])
    elif not isinstance(inside, dict):
        raise InputError(f"{step['path']} cannot be set: {parent} is not an object")
    elif step["op"] == "remove":
        inside.pop(key)
    else:
        inside[key] = step["value"]
