"""What is wrong with something that a person wrote, in the same words at every door.

A ``Mistake`` is the field, its value, the rule, the next step, and the names that may have been
meant. The command line, HTTP, the dashboard, webhooks and Slurm print ``describe``. ``validation``
turns what pydantic finds into mistakes.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from memgate.near_names import find_near, list_choices
from memgate.units import clip

#: how many are named: each byte of a document may cause one
MAX_MISTAKES = 20

#: how many of these a sentence names
_MAX_IN_A_SENTENCE = 5

#: names that are listed where none of them is near; a job spec has 27 fields
_MAX_NAMES = 32

_VALUE_LENGTH = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Mistake:
    """Something that is wrong."""

    field: str
    """Where, with dots; empty if it is the whole document."""
    value: str
    """What is there, as text, cut if it is long."""
    rule: str
    next_step: str = ""
    near: tuple[str, ...] = ()
    """Names that may have been meant, the most likely first."""

    @property
    def sentence(self) -> str:
        """All of it in one sentence."""
        where = self.field or "the whole"
        head = f"{where} is {self.value}" if self.value else where
        return "; ".join(filter(None, (f"{head}: {self.rule}", self.next_step)))


class RuleError(ValueError):
    """A rule of our own that a value breaks; validators of pydantic models raise it.

    A rule about one field of an object begins with the field: "wrap: it means nothing with ddp".
    """

    def __init__(self, rule: str, next_step: str = "", near: tuple[str, ...] = ()) -> None:
        super().__init__(rule)
        self.next_step = next_step
        self.near = near


def describe(mistakes: Sequence[Mistake], *, called: str = "mistakes") -> str:
    """Write mistakes for a person: one is a sentence, several are numbered.

    They may be ``called`` something else: what memgate cannot do is nobody's mistake.
    """
    if len(mistakes) == 1:
        return mistakes[0].sentence
    shown = [
        f"({number}) {one.sentence}"
        for number, one in enumerate(mistakes[:_MAX_IN_A_SENTENCE], start=1)
    ]
    if len(mistakes) > len(shown):
        shown.append(f"and {len(mistakes) - len(shown)} more")
    return f"{len(mistakes)} {called}: {' '.join(shown)}"


def show_value(value: object) -> str:
    """Write a value as JSON and YAML do where they differ from Python, cut if it is long."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    return clip(value, limit=_VALUE_LENGTH)


def unknown_name(field: str, value: object, known: Collection[str], *, rule: str) -> Mistake:
    """Say that a name is not in a list, and which names are similar, or which there are."""
    near = find_near(value, known)
    step = suggest(near)
    if not near and 0 < len(known) <= _MAX_NAMES:
        step = f"there are: {', '.join(known)}"
    return Mistake(field=field, value=show_value(value), rule=rule, next_step=step, near=near)


def unknown_field(
    field: str, given: object, known: Collection[str], *, rule: str = "there is no such field"
) -> Mistake:
    """Say that there is no such field, and which names are similar."""
    mistake = unknown_name(field, field.rpartition(".")[2], known, rule=rule)
    return replace(mistake, value=show_value(given))


def suggest(near: Sequence[str]) -> str:
    """Ask whether one of these was meant."""
    return f"did you mean {list_choices(near)}?" if near else ""
