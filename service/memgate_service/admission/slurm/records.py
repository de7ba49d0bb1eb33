"""What memgate has noted about a Slurm job: a record in its AdminComment.

Only administrators can write an AdminComment. ``deploy/slurm/memgate/gate.lua`` makes the record
when a job is submitted, ``release`` replaces it once there is an answer, ``outcomes`` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

#: the key of our record; other keys of the comment are notes of other programs
_KEY = "memgate"

#: decisions that are none of ``Decision``: it is being tried out; it tries another one out
REHEARSAL = "rehearsal"
COMPANION = "companion"


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is known about a job. Sizes are bytes."""

    decision: str = ""
    """A ``Decision``; or ``pending``, ``unanswered``, ``bad_spec``, ``no_gpu``, ``unknown_gpu``,
    ``rehearsal``, ``companion``."""
    gpu: str = ""
    needs: int = 0
    """What the job needs: the number that is compared with ``capacity``."""
    capacity: int = 0
    """What its GPU has."""
    id: str = ""
    """Of the estimate; outcomes are reported for it."""
    page: str = ""
    """Where a person can look at the estimate."""
    why: str = ""
    held: bool = False
    """memgate holds the job."""
    owner_held: bool = False
    """Its owner holds it, too."""
    question: str = ""
    """The body of ``POST /estimate``, if there was no answer yet."""
    cluster: str = ""
    """The cluster for whose user it was asked."""
    timer: int = 0
    """Until when memgate holds it, in seconds since 1970; 0 if that has no end."""
    begin: int = 0
    """The start time that its owner asked for."""
    late: str = ""
    """``reject``: to be canceled if it does not fit and has not started."""
    cards: str = ""
    """The GPUs of the cluster, by their names."""
    mode: str = ""
    """The policy's mode when it was submitted, if nothing was enforced."""
    audit: str = ""
    """The id of its record in the audit."""

    gpus: int = 0
    """How many GPUs it asks for, if it is rehearsed."""
    per_node: int = 0
    """And how many on a node, if that is known."""
    arguments: list[str] = []
    """Of its script."""
    of: int = 0
    """The job that a companion rehearses."""
    key: str = ""
    """What the result of a companion is kept under."""

    @property
    def is_open(self) -> bool:
        """There is something left to do: it is held, or has no answer yet."""
        is_waiting = self.held or (self.is_unanswered and bool(self.question))
        return is_waiting and self.decision != REHEARSAL  # which the broker settles

    @property
    def is_unanswered(self) -> bool:
        """There is no answer."""
        return self.decision in ("pending", "unanswered")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminComment:
    """Everything an AdminComment says."""

    record: Record
    others: Mapping[str, Any]
    """What other programs have written; kept as it is."""

    def text(self) -> str:
        """Write it as Slurm stores it."""
        document = {**self.others, _KEY: msgspec.to_builtins(self.record)}
        return msgspec.json.encode(document).decode()

    def with_record(self, record: Record) -> AdminComment:
        """Return the same with another record."""
        return AdminComment(record=record, others=self.others)


def read_comment(text: object) -> AdminComment | None:
    """Read an AdminComment; None if memgate has no record in it."""
    try:
        document = msgspec.json.decode(text) if isinstance(text, str) else None
        if not isinstance(document, dict) or not isinstance(document.get(_KEY), dict):
            return None
        record = msgspec.convert(document.pop(_KEY), Record, strict=False)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    return AdminComment(record=record, others=document)
