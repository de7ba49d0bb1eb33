"""The result of a rehearsal, as it comes back from where the job was run, and what it leads to.

A rehearsal that failed, or that saw too little, is no reason to refuse anything.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from memgate.decision import Decision

#: what a container may leave behind when it ends
_MAX_BYTES = 4096
_MAX_WHY = 1000


class RehearsalResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one run of a job without a GPU has shown."""

    decision: str = ""
    """As of an estimate; empty if nothing is known."""
    gpu: str = ""
    needs_bytes: int = 0
    why: str = ""
    codes: Sequence[str] = ()

    @property
    def is_refused(self) -> bool:
        """Say whether the job does not fit; everything else is let in."""
        return self.decision == Decision.REJECT

    @property
    def is_known(self) -> bool:
        """Say whether the job was measured."""
        return self.decision in (Decision.ADMIT, Decision.REJECT)

    @property
    def message(self) -> str:
        """For people."""
        if self.is_known:
            return f"rehearsed without a GPU: {self.why}"
        return f"a rehearsal cannot tell whether it fits: {self.why or 'it left no result'}"


def write_result(result: RehearsalResult) -> bytes:
    """Write a result in at most 4 kB."""
    short = msgspec.structs.replace(result, why=result.why[:_MAX_WHY], codes=result.codes[:32])
    text = msgspec.json.encode(short)
    if len(text) > _MAX_BYTES:  # letters of several bytes
        plain = short.why.encode("ascii", "replace").decode()
        text = msgspec.json.encode(msgspec.structs.replace(short, why=plain, codes=()))
    return text


def read_result(text: str) -> RehearsalResult:
    """Read what a run left behind; what cannot be read says nothing about the job."""
    try:
        return msgspec.json.decode(text, type=RehearsalResult)
    except (msgspec.MsgspecError, UnicodeError):
        return RehearsalResult(why=f"it ended without a result: {text[:200]}" if text else "")
