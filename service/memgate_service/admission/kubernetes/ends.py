"""Objects as they are now -> whether they have ended, and what they took on a GPU. Pure.

Kubernetes measures no GPU memory. A job, or a sampler beside it, may say what it took: by an
annotation of the object or of one of its pods, or by a line in what a container leaves behind
(``/dev/termination-log``). Without either it is not measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import NamedTuple

from memgate_service.admission.kubernetes.json_parts import JsonObject, as_list, as_object

#: what the driver showed for a process, with its CUDA context, at most
USED = "memgate.dev/used-bytes"
#: what PyTorch's allocator reserved at most, which is less
RESERVED = "memgate.dev/reserved-bytes"

_AMOUNT = re.compile(r"[1-9][0-9]{0,14}")
_LINE = re.compile(rf"({re.escape(USED)}|{re.escape(RESERVED)})\s*[=:]\s*([1-9][0-9]{{0,14}})\b")

_WELL = {"Complete", "Completed", "Succeeded", "SUCCEEDED"}
_BADLY = {"Failed", "FAILED", "Aborted", "Terminated", "STOPPED"}


class End(NamedTuple):
    """How an object ended."""

    is_failed: bool
    at: datetime | None
    """None if it does not say when."""


class Used(NamedTuple):
    """What one process took on one GPU."""

    num_bytes: int
    is_reserved_only: bool


def find_end(document: JsonObject) -> End | None:
    """Return how an object ended; None while it has not."""
    status = as_object(document.get("status"))
    for one in map(as_object, as_list(status.get("conditions"))):
        word = one.get("type")
        if one.get("status") == "True" and word in _WELL | _BADLY:
            when = status.get("completionTime") or one.get("lastTransitionTime")
            return End(word in _BADLY, _read_time(when))
    # pods, Ray's jobs, Volcano's jobs
    state = as_object(status.get("state"))
    for word in (status.get("phase"), status.get("jobStatus"), state.get("phase")):
        if word in _WELL | _BADLY:
            return End(word in _BADLY, _find_time(status, state))
    return None


def find_used(documents: Iterable[JsonObject]) -> Used | None:
    """Return the most that an object or its pods say they took; None if none of them does."""
    found = [one for document in documents for one in _read_used(document)]
    # what the driver showed has everything in it
    return max(found, key=lambda one: (not one.is_reserved_only, one.num_bytes), default=None)


def find_pods_of(uid: str, documents: Iterable[JsonObject]) -> list[JsonObject]:
    """Return the pods among objects that one of them has made, or what it has made."""
    listed = list(documents)
    ours, num_known = {uid}, 0
    while len(ours) > num_known:
        num_known = len(ours)
        ours |= {_uid(one) for one in listed if ours & set(_owners(one))}
    return [one for one in listed if one.get("kind") == "Pod" and ours & set(_owners(one))]


def keep_little(document: JsonObject) -> JsonObject:
    """Return the few fields of an object that are looked at here: a cluster has many pods."""
    metadata, status = as_object(document.get("metadata")), as_object(document.get("status"))
    return {
        "kind": document.get("kind"),
        "metadata": {
            name: metadata[name]
            for name in ("uid", "ownerReferences", "annotations")
            if name in metadata
        },
        "status": {name: status[name] for name in ("phase", "containerStatuses") if name in status},
    }


def has_started(uid: str, documents: Iterable[JsonObject]) -> bool:
    """Say whether a pod of an object runs, or has run."""
    pods = find_pods_of(uid, documents)
    return any(as_object(one.get("status")).get("phase", "Pending") != "Pending" for one in pods)


def _read_used(document: JsonObject) -> Iterator[Used]:
    annotations = as_object(as_object(document.get("metadata")).get("annotations"))
    for name in (USED, RESERVED):
        text = str(annotations.get(name, ""))
        if _AMOUNT.fullmatch(text):
            yield Used(int(text), name == RESERVED)
    statuses = as_list(as_object(document.get("status")).get("containerStatuses"))
    for status in map(as_object, statuses):
        ended = as_object(as_object(status.get("state")).get("terminated"))
        for name, text in _LINE.findall(str(ended.get("message") or "")):
            yield Used(int(text), name == RESERVED)


def _find_time(status: JsonObject, state: JsonObject) -> datetime | None:
    containers = map(as_object, as_list(status.get("containerStatuses")))
    ended = (as_object(as_object(one.get("state")).get("terminated")) for one in containers)
    times = [_read_time(one.get("finishedAt")) for one in ended]
    times += [_read_time(status.get("endTime")), _read_time(state.get("lastTransitionTime"))]
    return max(filter(None, times), default=None)


def _read_time(text: object) -> datetime | None:
    try:
        read = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return read if read.tzinfo is not None else None


def _owners(document: JsonObject) -> Iterator[str]:
    for one in as_list(as_object(document.get("metadata")).get("ownerReferences")):
        yield str(as_object(one).get("uid"))


def _uid(document: JsonObject) -> str:
    return str(as_object(document.get("metadata")).get("uid"))
