"""``ClusterMemgatePolicy`` and ``MemgatePolicy`` objects -> the policies in force, kept up to date.

They are listed every few seconds: no restart is needed. A broken one leaves its last good version
in force. If there is none, or they could not be read yet, it is not known what is wanted, and
nothing is enforced where it would apply.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from threading import Lock

import msgspec

from memgate_service.admission.core.layers import PolicyLayers, PolicyPart
from memgate_service.admission.core.policy_file import PolicyFile
from memgate_service.admission.core.rules import PolicyDocument, PolicyError, parse_policy
from memgate_service.admission.kubernetes.cluster import Cluster, ClusterError, Resource
from memgate_service.admission.kubernetes.json_parts import JsonObject, as_object
from memgate_service.admission.kubernetes.settings import AdmissionSettings

GROUP = "memgate.dev"
_VERSION = f"{GROUP}/v1alpha1"

CLUSTER_KIND = f"ClusterMemgatePolicy.{GROUP}"
NAMESPACED_KIND = f"MemgatePolicy.{GROUP}"

#: by kind; what exists of them is listed, not discovered
RESOURCES = {
    CLUSTER_KIND: Resource(_VERSION, "clustermemgatepolicies"),
    NAMESPACED_KIND: Resource(_VERSION, "memgatepolicies"),
}

#: a change is in force after at most so long
REFRESH_SECONDS = 5.0

#: of the cluster's policies alone
_NAMESPACED = "namespacedPolicies"
_CHOICES = ("tighten", "any")

#: what a namespace's own policy may be about
_OWN_FIELDS = ("user", "kind")
_OWN_EXEMPT = ("user", "group", "label")

_NOT_READ = "policies cannot be read"


def read_policy(kind: str, document: JsonObject) -> PolicyPart:
    """Read a policy object.

    Raises:
        PolicyError: naming what is wrong with it.
    """
    metadata = as_object(document.get("metadata"))
    spec = dict(as_object(document.get("spec")))
    name = f"{kind.partition('.')[0]}/{metadata.get('name', '')}"
    if kind == CLUSTER_KIND:
        allowed = spec.pop(_NAMESPACED, _CHOICES[0])
        if allowed not in _CHOICES:
            known = " or ".join(_CHOICES)
            raise PolicyError(f"{_NAMESPACED} is {allowed!r}: it must be {known}")
        said = parse_policy(msgspec.json.encode(spec))
        return PolicyPart(name=name, document=said, allows_any=allowed == "any")
    if _NAMESPACED in spec:
        raise PolicyError(f"{_NAMESPACED} is for a ClusterMemgatePolicy only")
    said = parse_policy(msgspec.json.encode(spec))
    _check_own(said)
    return PolicyPart(name=name, document=said, namespace=str(metadata.get("namespace", "")))


def _check_own(said: PolicyDocument) -> None:
    """Refuse what makes no sense within one namespace."""
    for what, entries, known in (
        ("rules", said.rules, _OWN_FIELDS),
        ("exempt", said.exempt, _OWN_EXEMPT),
    ):
        for number, entry in enumerate(entries, 1):
            other = [
                name
                for name in entry.__struct_fields__
                if name not in (*known, "name", "note", "mode", "on")
                and getattr(entry, name) is not None
            ]
            if other:
                choices = " or ".join(known)
                why = f"within a namespace it may be about {choices}"
                raise PolicyError(f"{what}[{number}] has {other[0]!r}: {why}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyState:
    """One policy object, and what became of it."""

    kind: str
    document: JsonObject
    part: PolicyPart | None
    """What is in force of it; None if nothing is."""
    problem: str = ""


def open_policies(
    settings: AdmissionSettings, connect: Callable[[], Cluster], log: Callable[[str], None]
) -> PolicyResources:
    """Return the policies for a cluster's objects, as the settings say where they are."""
    usual = settings.policy
    return PolicyResources(
        connect,
        settings.open_policy(log),
        {
            "reject": usual.rejected,
            "bad_spec": usual.mistaken,
            "uncertain": usual.uncertain,
            "unanswered": usual.unknown,
        },
        log,
        is_on=settings.admission_policy_resources,
    )


class PolicyResources:
    """The policies of a cluster, and the operator's own. Threads may share it."""

    def __init__(
        self,
        connect: Callable[[], Cluster],
        file: PolicyFile,
        usual: Mapping[str, str],
        log: Callable[[str], None],
        *,
        is_on: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read nothing yet; ``is_on``: whether there are such objects, or only the file."""
        self.is_on = is_on
        self._connect = connect
        self._file = file
        self._usual = usual
        self._log = log
        self._clock = clock
        self._cluster: Cluster | None = None
        self._lock = Lock()
        self._states: dict[tuple[str, str, str], PolicyState] | None = None if is_on else {}
        self._read_at = float("-inf")
        self._unreadable = ""

    def read(self) -> PolicyLayers:
        """Return what is in force, without asking anybody."""
        states = self._states
        if states is None:
            return PolicyLayers(base=self._file.read(), unread={"": _NOT_READ})
        parts = [one.part for one in states.values() if one.part is not None]
        unread = {_place(one): f"{_name(one)} is wrong" for one in states.values() if _is_lost(one)}
        return PolicyLayers(base=self._file.read(), parts=parts, usual=self._usual, unread=unread)

    def states(self) -> list[PolicyState]:
        """Return all policy objects, as they were when last listed."""
        return list((self._states or {}).values())

    def refresh(self, *, is_due: bool = True) -> None:
        """List them again; if that fails, what was known stays in force.

        Args:
            is_due: if not, only what is older than ``REFRESH_SECONDS`` is listed.
        """
        if not self.is_on:
            return
        with self._lock:
            if not is_due and self._clock() - self._read_at < REFRESH_SECONDS:
                return
            self._read_at = self._clock()
            try:
                found = self._list()
            except ClusterError as error:
                self._tell_unreadable(error.message)
                return
            self._tell_unreadable("")
            known = self._states or {}
            self._states = {_key(*one): self._state(known, *one) for one in found}

    def _list(self) -> list[tuple[str, JsonObject]]:
        if self._cluster is None:
            self._cluster = self._connect()
        found: list[tuple[str, JsonObject]] = []
        for kind, resource in RESOURCES.items():
            try:
                found += ((kind, one) for one in self._cluster.list(resource))
            except ClusterError as error:
                if error.status != 404:  # the kind is not installed: there are none
                    raise
        return found

    def _state(
        self, known: Mapping[tuple[str, str, str], PolicyState], kind: str, document: JsonObject
    ) -> PolicyState:
        before = known.get(_key(kind, document))
        try:
            return PolicyState(kind=kind, document=document, part=read_policy(kind, document))
        except PolicyError as error:
            part = before.part if before is not None else None
            state = PolicyState(kind=kind, document=document, part=part, problem=error.message)
        if before is None or before.problem != state.problem:
            kept = "its last good version stays in force" if part else "nothing of it is in force"
            self._log(f"{_name(state)} is wrong, {kept}: {state.problem}")
        return state

    def _tell_unreadable(self, why: str) -> None:
        if why and why != self._unreadable:
            kept = "nothing is enforced" if self._states is None else "those known stay in force"
            self._log(f"{_NOT_READ}, {kept}: {why}")
        self._unreadable = why


def _key(kind: str, document: JsonObject) -> tuple[str, str, str]:
    metadata = as_object(document.get("metadata"))
    return kind, str(metadata.get("namespace", "")), str(metadata.get("name", ""))


def _place(state: PolicyState) -> str:
    return _key(state.kind, state.document)[1]


def _name(state: PolicyState) -> str:
    kind, namespace, name = _key(state.kind, state.document)
    short = kind.partition(".")[0]
    return f"{short}/{name}" + (f" in {namespace}" if namespace else "")


def _is_lost(state: PolicyState) -> bool:
    """Say whether it is not known what an object wants."""
    return state.part is None
