"""Which kind of file describes a job, by its content."""

from __future__ import annotations

import gzip

import pytest

from memgate.file_kinds import HEAD_BYTES, FileKind, find_file_kind
from memgate.timeline_file.writing import write_timeline
from tests.conftest import DATA
from tests.timeline_files import make_plain

SPEC = b'{"model": {"source": "torchvision", "name": "vgg16"}, "batch_size": 1}'
TIMELINE = write_timeline(make_plain())
TRACE = (DATA / "traces/tiny-torch-2.14.json.gz").read_bytes()


@pytest.mark.parametrize(
    ("head", "want"),
    [
        (SPEC, FileKind.JOB_SPEC),
        (b"model:\n  source: timm\n  name: vit_tiny\n", FileKind.JOB_SPEC),
        (b"", FileKind.JOB_SPEC),
        (b"{", FileKind.JOB_SPEC),
        (TRACE, FileKind.TRACE),
        (gzip.decompress(TRACE), FileKind.TRACE),
        (b'{"schemaVersion": 1, "traceEvents": [{"na', FileKind.TRACE),
        (b" " * HEAD_BYTES, FileKind.TRACE),
        (b"\n[[1, 2], [[3], [4]]]", FileKind.TRACE),
        (b"<html><body>", FileKind.TRACE),
        (b"[]", FileKind.JOB_SPEC),
        (b"\x1f\x8bbroken", FileKind.TRACE),
        (b"\x80\x04}.", FileKind.SNAPSHOT),
        (gzip.compress(b"\x80\x02}."), FileKind.SNAPSHOT),
        (b"\x80\x09}.", FileKind.JOB_SPEC),
        (TIMELINE, FileKind.TIMELINE),
        (TIMELINE[:9], FileKind.TIMELINE),
        (gzip.compress(TIMELINE), FileKind.TIMELINE),
        (TIMELINE[:5], FileKind.JOB_SPEC),
    ],
    ids=[
        *("JSON", "YAML", "empty", "broken", "gzip", "plain trace", "broken trace", "too long"),
        *("memory timeline", "page", "list", "broken gzip"),
        *("snapshot", "packed snapshot", "no pickle of today"),
        *("timeline", "cut timeline", "packed timeline", "part of its magic"),
    ],
)
def test_a_file_is_recognised_by_its_content(head: bytes, want: FileKind) -> None:
    """Broken files too; what is longer than any spec can only be a trace."""
    assert find_file_kind(head[:HEAD_BYTES]) is want
