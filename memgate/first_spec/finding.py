"""What a first spec is made of: the fields that were found, and a note on each, found or not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from memgate.first_spec.source import Option, SourceCall

#: what must be there, and what it may look like
REQUIRED = {
    "model": "{source: torchvision, name: resnet50}",
    "input": "{shape: [3, 224, 224]}",
    "batch_size": "32",
}


@dataclass(slots=True)
class Findings:
    """The fields of a spec so far."""

    spec: dict[str, Any] = field(default_factory=dict)
    #: of the spec -> where it is from
    notes: dict[str, str] = field(default_factory=dict)
    #: sentences on what was seen and is not in the spec, or may be otherwise
    doubts: list[str] = field(default_factory=list)

    @property
    def ordered(self) -> dict[str, Any]:
        """The spec, with what must be there first."""
        return {name: self.spec[name] for name in REQUIRED if name in self.spec} | self.spec

    def put(self, name: str, value: Any, note: str) -> None:
        """Set a field, unless it is known already, or there is no value."""
        if value is not None and name not in self.spec:
            self.spec[name] = value
            self.notes[name] = note

    #: sentences on what is taken for granted and hardly ever wrong
    remarks: list[str] = field(default_factory=list)

    @property
    def missing(self) -> list[str]:
        """Fields that a spec must have and that were not found."""
        return [name for name in REQUIRED if name not in self.spec]

    @property
    def is_whole(self) -> bool:
        """Everything was found, and nothing is in doubt."""
        return not self.missing and not self.doubts

    @property
    def comments(self) -> list[str]:
        """All of it as sentences."""
        found = [f"{name}: {note}" for name, note in self.notes.items()]
        lacking = [f"not found: {name}; add it, such as {name}: {REQUIRED[name]}"
                   for name in self.missing]  # fmt: skip
        return [*found, *lacking, *self.doubts, *self.remarks]


def from_call(call: SourceCall) -> str:
    """Say that something is from a call."""
    return f"{call.last}(...) in line {call.line}"


def from_option(option: Option) -> str:
    """Say that something is the default of an option."""
    return f"the default of {option.shown}, line {option.line}"
