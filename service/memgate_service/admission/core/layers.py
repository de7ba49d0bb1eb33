"""Policies of several authors -> what applies to one job.

An operator's file or settings, resources for the whole cluster, and resources that namespaces have
for themselves. The latter may only tighten what applies without them, unless the cluster's allow
more. Pure; ``rules`` has the model of one policy, docs/policy.md describes both.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from memgate_service.admission.core.rules import (
    MILDEST_FIRST,
    Exemption,
    Mode,
    PolicyChoice,
    PolicyDocument,
    PolicyRule,
    Subject,
    resolve,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPart:
    """One policy of several, by its name."""

    name: str
    document: PolicyDocument
    namespace: str = ""
    """Where it applies; empty: everywhere."""
    allows_any: bool = False
    """Of the cluster: namespaces may do more than tighten it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLayers:
    """All policies that are in force."""

    base: PolicyDocument = field(default_factory=PolicyDocument)
    """The operator's own, for what no resource says."""
    parts: Sequence[PolicyPart] = ()
    usual: Mapping[str, str] = field(default_factory=dict)
    """What decisions lead to where no policy says anything."""
    unread: Mapping[str, str] = field(default_factory=dict)
    """Why it is not known what is wanted, by namespace; ``""`` is the whole cluster."""

    def choose(self, subject: Subject) -> PolicyChoice:
        """Return what applies to a job; where that is not known, nothing is enforced."""
        if "" in self.unread:
            return PolicyChoice(mode=Mode.AUDIT, rule=self.unread[""])
        chosen = resolve(self.cluster_document(), subject)
        if chosen.is_exempt:
            return chosen
        if self.allows_any and subject.namespace in self.unread:
            return PolicyChoice(mode=Mode.AUDIT, rule=self.unread[subject.namespace])
        own = self.own_document(subject.namespace)
        if own is None:
            return chosen
        if self.allows_any:
            return self._choose_freely(own, subject)
        limited = msgspec.structs.replace(own, mode=chosen.mode, on=dict(chosen.on), exempt=[])
        return self._tighten(chosen, resolve(limited, subject))

    @property
    def allows_any(self) -> bool:
        """Whether namespaces may do more than tighten: if one policy of the cluster says so."""
        return any(part.allows_any for part in self.parts if not part.namespace)

    def cluster_document(self) -> PolicyDocument:
        """Return what applies everywhere: resources by name, then the operator's own."""
        parts = [part for part in self.parts if not part.namespace]
        merged = _merge(parts)
        return PolicyDocument(
            mode=merged.mode or self.base.mode,
            on=self.base.on | merged.on,
            exempt=[*merged.exempt, *self.base.exempt],
            rules=[*merged.rules, *self.base.rules],
        )

    def own_document(self, namespace: str) -> PolicyDocument | None:
        """Return what a namespace says about itself; None if nothing."""
        parts = [part for part in self.parts if part.namespace == namespace]
        if not namespace or not parts:
            return None
        rules = [
            *(_within(rule, namespace) for rule in _merge(parts).rules),
            *(_whole(part) for part in parts),
        ]
        return PolicyDocument(rules=rules, exempt=_merge(parts).exempt)

    def _choose_freely(self, own: PolicyDocument, subject: Subject) -> PolicyChoice:
        everywhere = self.cluster_document()
        both = PolicyDocument(
            mode=everywhere.mode,
            on=everywhere.on,
            exempt=own.exempt,
            rules=[*own.rules, *everywhere.rules],
        )
        return resolve(both, subject)

    def _tighten(self, chosen: PolicyChoice, own: PolicyChoice) -> PolicyChoice:
        """Return the stricter of both in every respect."""
        mode = max(chosen.mode, own.mode, key=lambda one: one.strictness)
        on = dict(chosen.on)
        for decision, action in own.on.items():
            known = on.get(decision, self.usual.get(decision, "admit"))
            if _severity(action) > _severity(known):
                on[decision] = action
        is_stricter = mode is not chosen.mode or on != dict(chosen.on)
        return PolicyChoice(mode=mode, rule=own.rule if is_stricter else chosen.rule, on=on)


def find_ineffective(layers: PolicyLayers, part: PolicyPart) -> list[str]:
    """Say what in a namespace's own policy has no effect, since it may only tighten."""
    if not part.namespace or layers.allows_any:
        return []
    notes = []
    if part.document.exempt:
        notes.append("exempt has no effect")
    cluster = resolve(layers.cluster_document(), Subject(namespace=part.namespace))
    for where, said in [("", part.document), *_numbered(part.document.rules)]:
        if said.mode is not None and said.mode.strictness < cluster.mode.strictness:
            notes.append(f"{where}mode {said.mode} is milder than {cluster.mode} ({cluster.rule})")
        for decision, action in said.on.items():
            known = cluster.on.get(decision, layers.usual.get(decision, "admit"))
            if _severity(action) < _severity(known):
                notes.append(f"{where}on.{decision} {action} is milder than {known}")
    return notes


def _numbered(rules: Iterable[PolicyRule]) -> list[tuple[str, PolicyRule]]:
    return [(f"rules[{number}].", rule) for number, rule in enumerate(rules, 1)]


def _severity(action: str) -> int:
    return MILDEST_FIRST.index(action)


def _merge(parts: Sequence[PolicyPart]) -> PolicyDocument:
    """Return policies as one, ordered by name: of equals the first counts."""
    ordered = sorted(parts, key=lambda part: part.name)
    modes = (part.document.mode for part in ordered if part.document.mode is not None)
    on: dict[str, str] = {}
    rules: list[PolicyRule] = []
    exempt: list[Exemption] = []
    for part in ordered:
        on = part.document.on | on
        for number, rule in enumerate(part.document.rules, 1):
            name = f"{part.name}/{rule.name or f'rules[{number}]'}"
            rules.append(msgspec.structs.replace(rule, name=name))
        for number, exemption in enumerate(part.document.exempt, 1):
            name = f"{part.name}/{exemption.name or f'exempt[{number}]'}"
            exempt.append(msgspec.structs.replace(exemption, name=name))
    return PolicyDocument(mode=next(modes, None), on=on, rules=rules, exempt=exempt)


def _within(rule: PolicyRule, namespace: str) -> PolicyRule:
    return msgspec.structs.replace(rule, namespace=namespace)


def _whole(part: PolicyPart) -> PolicyRule:
    """Return what a namespace's policy says about all of the namespace, as a rule."""
    said = part.document
    return PolicyRule(name=part.name, namespace=part.namespace, mode=said.mode, on=said.on)
