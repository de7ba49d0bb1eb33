"""A trainer's config -> its fields by their full names, each ticked off when it is used.

What is left at the end is classified by what we know of the tool: it cannot matter for memory, it
can and is not supported yet, or we do not know it, and then it may. Nothing is left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from memgate.errors import InputError
from memgate.mistakes import Mistake, show_value, suggest
from memgate.near_names import find_near

#: no config that people write is larger or deeper
MAX_FIELDS = 1000
MAX_DEPTH = 12

#: values with which a field does nothing
_OFF = (None, False, 0, "", "no", "none", "false")

#: over how many something is divided: over one is not at all
_DIVIDES = re.compile(r"parallel\w*_(size|dim|degree)$|^dp_\w+_size$")

#: whose values are not repeated: output ends up in logs
_SECRET = re.compile(r"(token|key|secret|password)s?$", re.IGNORECASE)


class Usage(StrEnum):
    """What became of a field of a config."""

    USED = "used"
    CANNOT_MATTER = "cannot_matter"
    """It changes no memory of the GPU, or is off."""
    NOT_SUPPORTED = "not_supported"
    """It can matter, and a job spec cannot say it, or memgate does not model it."""
    UNKNOWN = "unknown"
    """memgate does not know it, so it may matter."""

    @property
    def can_matter(self) -> bool:
        """Say whether the answer may be for another job because of it."""
        return self in (Usage.NOT_SUPPORTED, Usage.UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldUse:
    """One field of a config, and what became of it."""

    name: str
    use: Usage
    #: as given, where it can matter and is not a secret
    value: str = ""
    note: str = ""

    @property
    def sentence(self) -> str:
        """All of it in one sentence."""
        head = f"{self.name} is {self.value}" if self.value else self.name
        return f"{head}: {self.note}" if self.note else head


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """What is known of the fields of a tool that a spec has no place for."""

    #: a name stands for all that is below it
    harmless: frozenset[str]
    #: name -> what it changes
    matters: Mapping[str, str]
    #: a value that leaves something to others, which then say it
    open_value: str | None = None

    def __or__(self, other: Knowledge) -> Knowledge:
        """Return both."""
        matters = {**other.matters, **self.matters}
        return Knowledge(harmless=self.harmless | other.harmless, matters=matters)


def names(text: str) -> frozenset[str]:
    """Return the names in a text."""
    return frozenset(text.split())


class Config:
    """The fields of a document by their full names, such as ``model.lora_rank``."""

    def __init__(self, document: Mapping[str, Any], *, inside: str = "") -> None:
        self._inside = inside
        self._values = dict(_flatten(document))
        self._used: set[str] = set()
        self._refused: dict[str, str] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    @property
    def names(self) -> list[str]:
        """All fields, in the order of the document."""
        return list(self._values)

    def get(self, name: str, default: Any = None) -> Any:
        """Use a field; a null is as if it was not given."""
        self._used.add(name)
        value = self._values.get(name)
        return default if value is None else value

    def first(self, *names: str) -> Any:
        """Use the first of several names for the same that is given."""
        found = [value for value in map(self.get, names) if value is not None]
        return found[0] if found else None

    def below(self, name: str) -> dict[str, Any]:
        """Use all that is inside a field."""
        inner = {key: self.get(key) for key in self._values if key.startswith(f"{name}.")}
        return {key.removeprefix(f"{name}."): value for key, value in inner.items()}

    def flag(self, name: str, *, default: bool = False) -> bool:
        """Use a field that is true or false.

        Raises:
            InputError: if it is neither.
        """
        value = self.get(name, default)
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if not isinstance(value, bool):
            raise self.wrong(name, value, "it must be true or false")
        return value

    def whole(self, name: str, default: int | None = None) -> int | None:
        """Use a field that is a whole number.

        Raises:
            InputError: if it is not one.
        """
        value = self.get(name, default)
        if isinstance(value, str) and value.isdecimal():
            value = int(value)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise self.wrong(name, value, "it must be a whole number")
        return value

    def number(self, name: str, default: float | None = None) -> float | None:
        """Use a field that is a number; YAML takes some numbers for text.

        Raises:
            InputError: if it is not one.
        """
        value = self.get(name, default)
        try:
            return None if value is None else float(value)
        except (TypeError, ValueError):
            raise self.wrong(name, value, "it must be a number") from None

    def refuse(self, name: str, why: str) -> None:
        """Say that a field was looked at, and that its value cannot be put into a spec."""
        self._refused[name] = why

    def wrong(self, name: str, value: object, rule: str, step: str = "") -> InputError:
        """Return the error that names a field, its value and the rule."""
        mistake = Mistake(
            field=f"{self._inside}{name}", value=show_value(value), rule=rule, next_step=step
        )
        return InputError.from_mistakes(mistake)

    def account(self, known: Knowledge) -> tuple[FieldUse, ...]:
        """Say what became of each field."""
        names = frozenset(known.harmless | known.matters.keys() | self._used)
        return tuple(self._account(name, known, names) for name in self._values)

    def _account(self, name: str, known: Knowledge, names: frozenset[str]) -> FieldUse:
        value, shown = self._values[name], f"{self._inside}{name}"
        above = _with_those_above(name)
        if why := next((self._refused[one] for one in above if one in self._refused), ""):
            use, note = Usage.NOT_SUPPORTED, why
        elif name in self._used:
            use, note = Usage.USED, ""
        elif (found := next((one for one in above if one in names - self._used), None)) is None:
            hint = suggest(find_near(name, names - {name}))
            use, note = Usage.UNKNOWN, "; ".join(filter(None, ("memgate does not know it", hint)))
        elif found in known.harmless:
            use, note = Usage.CANNOT_MATTER, ""
        elif _is_off(name, value) or (value is not None and value == known.open_value):
            use, note = Usage.CANNOT_MATTER, "off"
        else:
            use, note = Usage.NOT_SUPPORTED, known.matters[found]
        said = _show(name, value) if use.can_matter else ""
        return FieldUse(name=shown, use=use, value=said, note=note)


def _is_off(name: str, value: object) -> bool:
    return value in _OFF or value in ([], {}) or (value == 1 and bool(_DIVIDES.search(name)))


def _show(name: str, value: object) -> str:
    return "(not shown)" if _SECRET.search(name) else show_value(value)


def _with_those_above(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(len(parts), 0, -1)]


def _flatten(document: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """Return the values of a document that are not objects; an empty object is a value."""
    found: list[tuple[str, Any]] = []
    waiting: list[tuple[str, Any, int]] = [("", document, 0)]
    while waiting:
        name, value, depth = waiting.pop()
        if not isinstance(value, dict) or (name and not value):
            found.append((name, value))
        elif depth > MAX_DEPTH:
            raise InputError(f"{name[:40]}...: nested more than {MAX_DEPTH} deep; no config is")
        else:
            inner = [(f"{name}.{key}" if name else str(key), one) for key, one in value.items()]
            waiting += [(key, one, depth + 1) for key, one in reversed(inner)]
        if len(found) + len(waiting) > MAX_FIELDS:
            raise InputError(f"a config may have {MAX_FIELDS} fields, and this has more")
    return found
