"""A policy and a job -> the mode, what each decision leads to there, and which rule says so.

Pure. The same rules as ``deploy/slurm/memgate/policy.lua``, which slurmctld uses: a test compares
them case by case. docs/policy.md describes the document.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum, StrEnum
from functools import lru_cache
from typing import Any

import msgspec

from memgate.errors import InputError
from memgate_service.admission.core.policy import Action


class Mode(StrEnum):
    """How much of a decision is carried out."""

    ENFORCE = "enforce"
    WARN = "warn"
    """People are told what would have happened; nothing is refused, held or canceled."""
    AUDIT = "audit"
    """The same, and only the audit says so."""

    @property
    def strictness(self) -> int:
        """How much it does: the strictest has the largest number."""
        return {Mode.AUDIT: 1, Mode.WARN: 2, Mode.ENFORCE: 3}[self]

    def apply(self, action: Action) -> Action:
        """Return what is done: where nothing is enforced, everything is let in."""
        return action if self is Mode.ENFORCE else Action.ADMIT


class _Rank(IntEnum):
    """How specific a rule is, by what it is about."""

    namespace = 1
    partition = 2
    kind = 2
    qos = 3
    account = 4
    user = 5


_ALL = frozenset({"admit", "reject", "hold"})
_NEVER_HELD = frozenset({"admit", "reject"})
_WITHOUT_A_KIND = frozenset({"admit", "right_size"})
_WITHOUT_A_WORD = frozenset({"admit", "reject", "rehearse"})

#: decisions, and what each may lead to
ACTIONS: Mapping[str, frozenset[str]] = {
    "reject": _ALL,
    "uncertain": _ALL,
    "unanswered": _ALL,
    "bad_spec": _ALL,
    "unknown_gpu": _NEVER_HELD,
    "undescribed": _WITHOUT_A_WORD,
    "untyped": _WITHOUT_A_KIND,
    "late": _NEVER_HELD,
}

#: what a decision may lead to
MILDEST_FIRST = ("admit", "right_size", "rehearse", "hold", "reject")

Texts = str | list[str]


class PolicyError(InputError):
    """A policy document is wrong."""

    code = "POLICY_WRONG"


class _Choices(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    mode: Mode | None = None
    on: dict[str, str] = {}
    note: str = ""


class PolicyRule(_Choices, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What applies to some jobs: those to which every field that is given applies."""

    name: str = ""
    user: Texts | None = None
    account: Texts | None = None
    qos: Texts | None = None
    partition: Texts | None = None
    kind: Texts | None = None
    namespace: Texts | None = None

    @property
    def rank(self) -> int:
        """How specific it is; 0 if it is about nothing."""
        given = [one for one in _Rank.__members__ if getattr(self, one) is not None]
        return max((_Rank[one].value for one in given), default=0)

    def is_about(self, subject: Subject) -> bool:
        """Say whether it applies to a job."""
        return all(
            _matches(getattr(self, name), subject.values(name))
            for name in _Rank.__members__
            if getattr(self, name) is not None
        )


class Exemption(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Whose jobs are not looked at."""

    name: str = ""
    note: str = ""
    user: Texts | None = None
    group: Texts | None = None
    account: Texts | None = None
    label: dict[str, str] | None = None

    @property
    def is_empty(self) -> bool:
        """It names nobody."""
        is_unnamed = all(one is None for one in (self.user, self.group, self.account))
        return is_unnamed and not self.label

    def is_about(self, subject: Subject) -> bool:
        """Say whether it applies to a job."""
        names = (name for name in ("user", "group", "account") if getattr(self, name) is not None)
        labels = (self.label or {}).items()
        return all(_matches(getattr(self, name), subject.values(name)) for name in names) and all(
            name in subject.label and _matches(text, [subject.label[name]]) for name, text in labels
        )


class PolicyDocument(_Choices, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """What an operator has written: a mode for the whole cluster, exemptions and rules."""

    exempt: list[Exemption] = []
    rules: list[PolicyRule] = []


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """Who submits a job, and where to."""

    user: str = ""
    group: Sequence[str] = ()
    account: str = ""
    qos: str = ""
    partition: Sequence[str] = ()
    """Where it may run: of several, the strictest mode counts."""
    kind: str = ""
    namespace: str = ""
    label: Mapping[str, str] = field(default_factory=dict)

    def values(self, name: str) -> list[str]:
        """Return what is known under a name."""
        value: Any = getattr(self, name)
        return [one for one in ([value] if isinstance(value, str) else value) if one]


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyChoice:
    """What applies to one job."""

    mode: Mode
    rule: str
    """Which rule says so: its name or its place, ``cluster`` if none is about the job."""
    on: Mapping[str, str] = field(default_factory=dict)
    """What decisions lead to, as far as the policy says."""
    is_exempt: bool = False
    others: Sequence[Mapping[str, str]] = ()
    """``on`` of further partitions where the job may run, and which are as strict."""

    def actions(self, decision: str) -> list[str]:
        """Return what a decision leads to, the strictest last; "" is as the settings say."""
        said = {one.get(decision, "") for one in (self.on, *self.others)}
        return sorted(said, key=("", *MILDEST_FIRST).index)


def parse_policy(text: bytes | str) -> PolicyDocument:
    """Read a policy.

    Raises:
        PolicyError: if anything in it is wrong or not known.
    """
    try:
        document = msgspec.json.decode(text, type=PolicyDocument)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise PolicyError(f"the policy cannot be read: {error}") from None
    _check_choices(document, "the policy")
    for number, exemption in enumerate(document.exempt, 1):
        if exemption.is_empty:
            raise PolicyError(f"exempt[{number}] names nobody: it needs a field such as account")
    for number, rule in enumerate(document.rules, 1):
        _check_choices(rule, f"rules[{number}]")
        if not rule.rank:
            raise PolicyError(f"rules[{number}] names nobody: it needs a field such as account")
    return document


def _check_choices(said: _Choices, where: str) -> None:
    for decision, action in said.on.items():
        if decision not in ACTIONS:
            known = ", ".join(ACTIONS)
            raise PolicyError(f"{where}: on has {decision!r}: it must be one of {known}")
        if action not in ACTIONS[decision]:
            known = ", ".join(sorted(ACTIONS[decision]))
            raise PolicyError(f"{where}: on.{decision} is {action!r}: it must be one of {known}")


def resolve(document: PolicyDocument, subject: Subject) -> PolicyChoice:
    """Return what applies to a job: an exemption, or the most specific rule."""
    for number, exemption in enumerate(document.exempt, 1):
        if exemption.is_about(subject):
            rule = exemption.name or f"exempt[{number}]"
            return PolicyChoice(mode=Mode.AUDIT, rule=rule, is_exempt=True)
    places = [[one] for one in subject.partition] or [[]]
    found = [_find_rule(document, _in_partition(subject, place)) for place in places]
    chosen = max(found, key=lambda one: one.mode.strictness)
    others = [one.on for one in found if one is not chosen and one.mode is chosen.mode]
    return replace(chosen, others=others)


def _in_partition(subject: Subject, partition: Sequence[str]) -> Subject:
    return Subject(
        user=subject.user,
        group=subject.group,
        account=subject.account,
        qos=subject.qos,
        partition=partition,
        kind=subject.kind,
        namespace=subject.namespace,
        label=subject.label,
    )


def _find_rule(document: PolicyDocument, subject: Subject) -> PolicyChoice:
    """Return what the most specific rule says; of equals, the first."""
    best, name = None, "cluster"
    for number, rule in enumerate(document.rules, 1):
        if rule.is_about(subject) and (best is None or rule.rank > best.rank):
            best, name = rule, rule.name or f"rules[{number}]"
    mode = best.mode if best is not None else None
    on = document.on | (best.on if best is not None else {})
    return PolicyChoice(mode=mode or document.mode or Mode.ENFORCE, rule=name, on=on)


def _matches(wanted: Texts, values: Sequence[str]) -> bool:
    patterns = [wanted] if isinstance(wanted, str) else wanted
    return any(_pattern(text).fullmatch(one) for text in patterns for one in values)


@lru_cache(maxsize=1024)
def _pattern(text: str) -> re.Pattern[str]:
    """Return what a text with ``*`` for any text stands for."""
    return re.compile(".*".join(map(re.escape, text.split("*"))), re.DOTALL)
