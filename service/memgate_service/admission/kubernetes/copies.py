"""How many pods an object makes of a template, and how many processes it starts in each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from memgate_service.admission.kubernetes.json_parts import (
    JsonObject,
    as_object,
    find_part,
    unescape,
)
from memgate_service.admission.kubernetes.settings import Group

#: more than any object makes: numbers are multiplied
_MAX_PODS = 1 << 20

#: fields of what contains a template that multiply its pods, the first of each group that is there:
#: of groups that grow and shrink by themselves, how large they may become
_COUNTS = (
    ("maxReplicas", "replicas"),
    ("parallelism",),
    ("count",),
    ("numNodes",),
    ("numOfHosts",),
)

#: fields that say how many processes are started in a pod: a number, or a word such as ``gpu``
_PROCESSES = ("nprocPerNode", "numProcPerNode", "slotsPerWorker")


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """Pods of one template."""

    number: int = 1
    group: Group = "separate"
    #: where the number is written, for people
    source: str = ""
    #: that are started in each; None: one for each of its GPUs
    processes: int | None = None


#: or as many as there are: each is a job of its own
ONE_POD = Copies()


def count_copies(document: JsonObject, pointer: str, group: Group) -> Copies:
    """Return how many pods a template makes, by all that contains it.

    Pods that are no job together are not counted: it does not matter how many there are.
    """
    if group == "separate":
        return ONE_POD
    number, processes = 1, None
    names = []
    for place, here in _containing(document, pointer):
        for choices in _COUNTS:
            name = next((one for one in choices if _is_count(here.get(one))), None)
            if name is not None:
                number *= here[name]
                names.append(f"{place}{name}")
        for name in _PROCESSES:
            # kinds of Kubeflow write numbers as text, too
            text = str(here.get(name, ""))
            processes = int(text) if text.isdecimal() and 0 < len(text) < 8 else processes
    return Copies(
        number=min(number, _MAX_PODS), group=group, source=", ".join(names), processes=processes
    )


def _containing(document: JsonObject, pointer: str) -> Iterator[tuple[str, JsonObject]]:
    """Yield all that a pointer goes through, with its place for people."""
    inside: object = document
    place = ""
    for key in pointer.split("/")[1:]:
        yield place, as_object(inside)
        inside = find_part(inside, key)
        place += f"{unescape(key)}."


def _is_count(value: object) -> bool:
    return type(value) is int and value >= 0
