"""The first bytes of a file -> what it describes a job by: a spec, a trace, a snapshot, a timeline.

By content, not by name: people call their files what they like.
"""

from __future__ import annotations

from enum import StrEnum

from memgate.gunzip import GZIP_MAGIC, peek_unpacked
from memgate.timeline_file.document import MAGIC

#: a spec is a few hundred bytes, a model's configuration a few thousand
MAX_SPEC_LENGTH = 1 << 18

#: how much of a file ``find_file_kind`` looks at: a UTF-8 character has at most four bytes
HEAD_BYTES = 4 * MAX_SPEC_LENGTH + 1

#: how a pickle begins: an opcode, and the number of the protocol, of which 2 is the first with it
_PICKLE_MAGICS = tuple(bytes([0x80, protocol]) for protocol in range(2, 6))

#: the key that every Chrome trace has
_TRACE_KEY = b'"traceEvents"'

#: how other files begin that a profiler leaves behind, lists and pages: the reader of traces names
#: them, and no job spec begins so
_PROFILER_STARTS = (b"[", b"<")
#: nothing that a profiler leaves behind is so short
_SHORT = 8


class FileKind(StrEnum):
    """What a file describes a job by."""

    JOB_SPEC = "job spec"
    TRACE = "profiler trace"
    SNAPSHOT = "memory snapshot"
    TIMELINE = "timeline file"


def find_file_kind(head: bytes) -> FileKind:
    """Return the kind of a file; ``head`` is the first ``HEAD_BYTES`` of a file, or all of it.

    A broken file of a kind is recognised too, so that the error is about what it should be.
    """
    if peek_unpacked(head, 2) in _PICKLE_MAGICS:
        return FileKind.SNAPSHOT
    if peek_unpacked(head, len(MAGIC)) == MAGIC:
        return FileKind.TIMELINE
    is_trace = (
        head.startswith(GZIP_MAGIC)
        or (len(head) > _SHORT and head.lstrip().startswith(_PROFILER_STARTS))
        or _TRACE_KEY in head
        or len(head) >= HEAD_BYTES
    )
    return FileKind.TRACE if is_trace else FileKind.JOB_SPEC
