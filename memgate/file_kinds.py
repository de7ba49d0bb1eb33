"""The first bytes of a file -> what it describes a job by: a job spec, or a profiler trace.

By content, not by name: people call their files what they like.
"""

from __future__ import annotations

from enum import StrEnum

from memgate.spec_text import MAX_SPEC_LENGTH

#: how much of a file ``find_file_kind`` looks at: a UTF-8 character has at most four bytes
HEAD_BYTES = 4 * MAX_SPEC_LENGTH + 1

_GZIP_MAGIC = b"\x1f\x8b"

#: the key that every Chrome trace has
_TRACE_KEY = b'"traceEvents"'


class FileKind(StrEnum):
    """What a file describes a job by."""

    JOB_SPEC = "job spec"
    TRACE = "profiler trace"


def find_file_kind(head: bytes) -> FileKind:
    """Return the kind of a file; ``head`` is the first ``HEAD_BYTES`` of a file, or all of it.

    A broken file of either kind is recognised too, so that the error is about what it should be.
    """
    is_trace = head.startswith(_GZIP_MAGIC) or _TRACE_KEY in head or len(head) >= HEAD_BYTES
    return FileKind.TRACE if is_trace else FileKind.JOB_SPEC
