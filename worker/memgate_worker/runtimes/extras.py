"""Extras: libraries that can be added to a runtime by name, and change nothing that it has.

Most jobs need none of them, so the default runtime stays small. A runtime's file lists its extras;
this module reads that list, and knows in which order they are installed. What is there is in
``runtime``, how they are installed in ``adding``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from memgate.errors import InputError
from memgate.mistakes import unknown_name


@dataclass(frozen=True, slots=True, kw_only=True)
class Extra:
    """Libraries with a name of their own, as a runtime file describes them."""

    name: str
    #: what it is for, for people
    description: str
    #: installed without what they depend on
    bare: tuple[str, ...] = ()
    #: installed with what they depend on
    full: tuple[str, ...] = ()
    #: what jobs import of it
    modules: tuple[str, ...]
    #: other extras without which it does not work
    needs: tuple[str, ...] = ()
    #: about how much space it takes; 0 if the file does not say
    disk_bytes: int = 0

    @property
    def packages(self) -> tuple[str, ...]:
        """What is installed by name."""
        return self.bare + self.full

    @property
    def digest(self) -> str:
        """Digest of what decides which libraries are installed."""
        return hashlib.sha256(repr((self.bare, self.full)).encode()).hexdigest()


_FIELDS = {field.name for field in fields(Extra)} - {"name"}
_LISTS = ("bare", "full", "modules", "needs")


def read_extras(table: Mapping[str, Mapping[str, Any]]) -> tuple[Extra, ...]:
    """Read the table of a runtime file.

    Raises:
        ValueError: if it is wrong, with the place.
    """
    for name, said in table.items():
        for wrong in sorted(said.keys() - _FIELDS):
            raise ValueError(f"extras.{name} has no field {wrong!r}")
        for missing in sorted({"description", "modules"} - said.keys()):
            raise ValueError(f"extras.{name} must say {missing!r}")
        for other in said.get("needs", ()):
            if other not in table:
                raise ValueError(f"extras.{name} needs {other!r}, which is not an extra")
    return tuple(
        Extra(name=name, **{**said, **{key: tuple(said.get(key, ())) for key in _LISTS}})
        for name, said in table.items()
    )


def choose_extras(names: Iterable[str], known: Sequence[Extra]) -> tuple[Extra, ...]:
    """Return extras by name, each after those that it needs.

    Raises:
        InputError: if there is none of a name, with the known names.
    """
    by_name = {extra.name: extra for extra in known}
    chosen: dict[str, Extra] = {}
    for name in names:
        if name not in by_name:
            mistake = unknown_name("--with", name, by_name, rule="the runtime has no such extra")
            raise InputError.from_mistakes(mistake)
        _add_with_needs(by_name[name], by_name, chosen, set())
    return tuple(chosen.values())


def _add_with_needs(
    extra: Extra, by_name: Mapping[str, Extra], chosen: dict[str, Extra], above: set[str]
) -> None:
    if extra.name in above:  # two that need each other
        return
    for name in extra.needs:
        _add_with_needs(by_name[name], by_name, chosen, {*above, extra.name})
    chosen[extra.name] = extra
