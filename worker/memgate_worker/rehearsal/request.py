"""What is rehearsed, and what comes of it: passed between processes as JSON."""

from __future__ import annotations

from typing import Any

import msgspec


class RehearsalRequest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job as its owner submitted it."""

    script: str
    arguments: list[str] = []
    environment: dict[str, str] = {}
    directory: str
    #: as in ``POST /estimate``
    gpu: dict[str, Any]
    #: how long the job is watched at the most
    seconds: float = 150.0
    #: what it may take of this machine's memory, and of that for what it writes
    memory_bytes: int = 8 << 30
    written_bytes: int = 2 << 30
    #: where stand-ins are kept; each user has a directory of their own there
    cache: str = ""
    #: other places that the job must not see
    hidden: list[str] = []


class Rehearsal(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a rehearsal found: a timeline, or why there is none."""

    timeline: bytes = b""
    why: str = ""
