"""Reading vector files, good and bad."""

from __future__ import annotations

import gzip
import io
from typing import Any

import pytest

from memgate.allocator import vectors
from memgate.allocator.vectors import Vector, read_vectors
from memgate.errors import VectorFormatError
from memgate.timeline import Alloc, EmptyCache, EventsPending, Free, RecordStream, SetFraction
from tests.builders import make_record, to_lines


def _read(data: bytes) -> list[Vector]:
    return list(read_vectors(io.BufferedReader(io.BytesIO(data))))


@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "gzip"])
def test_records_are_read_plain_or_gzip(compress: Any) -> None:
    """What the bytes are is seen from the bytes, not from a file's name."""
    records = _read(compress(to_lines([make_record(id="a"), make_record(id="b")])))

    assert [record.id for record in records] == ["a", "b"]


def test_all_kinds_of_events_are_read() -> None:
    """The six events of the format become the six events of a timeline."""
    events = [
        ["alloc", 1, 512, 2],
        ["record_stream", 1, 3],
        ["events_pending", 1],
        ["free", 1],
        ["empty_cache"],
        ["set_fraction", 0.5],
    ]

    (record,) = _read(to_lines([make_record(events=events)]))

    assert record.timeline.events == (
        Alloc(1, 512, 2),
        RecordStream(1, 3),
        EventsPending(1),
        Free(1),
        EmptyCache(),
        SetFraction(0.5),
    )


def test_empty_lines_are_passed_over() -> None:
    """A file may end in, or contain, empty lines."""
    assert len(_read(b"\n" + to_lines([make_record()]) + b"\n\n")) == 1


def test_any_binary_stream_is_read() -> None:
    """Also one that cannot be looked into, gzip or not."""
    data = gzip.compress(to_lines([make_record()]))

    assert len(list(read_vectors(io.BytesIO(data)))) == 1


@pytest.mark.parametrize(
    ("fields", "want_message"),
    [
        pytest.param(
            {"events": [["alloc", 1, -5, 0]]},
            "line 1, record 'tiny', events[0][2] is -5: Expected `int` >= 0; events are alloc, ",
            id="negative size",
        ),
        pytest.param(
            {"events": [["alloc", 1, 2**60, 0]]},
            "line 1, record 'tiny', events[0][2] is 1152921504606846976: Expected `int` <= ",
            id="an exabyte",
        ),
        pytest.param(
            {"events": [["free", 1], ["grow", 1]]},
            "line 1, record 'tiny', events[1][0] is 'grow': Invalid value 'grow'; events are ",
            id="unknown event",
        ),
        pytest.param(
            {"events": [["alloc", 1]]},
            "line 1, record 'tiny', events[0] is ['alloc', 1]: Expected `array` of at least",
            id="short event",
        ),
        pytest.param(
            {"events": [["set_fraction", 2]]},
            "line 1, record 'tiny', events[0][1] is 2: Expected `float` <= 1",
            id="fraction above one",
        ),
        pytest.param(
            {"capacity_bytes": "8 GB"},
            "line 1, record 'tiny', capacity_bytes is '8 GB': Expected `int`, got `str`",
            id="capacity in words",
        ),
        pytest.param(
            {"id": 7}, "line 1, a record without an id, id is 7: Expected `str`", id="bad id"
        ),
        pytest.param(
            {"expect": {"allocated_every": 0}},
            "line 1, record 'tiny', expect.allocated_every is 0: Expected `int` >= 1",
            id="an answer that is none",
        ),
        pytest.param(
            {"expect": {"segment_events": [[0, "segment_grow", 1, 0]]}},
            "line 1, record 'tiny', expect.segment_events[0][1] is 'segment_grow': Invalid enum",
            id="an unknown segment event",
        ),
        pytest.param(
            {"alt_address_policy": {"down": "low"}},
            "line 1, record 'tiny', alt_address_policy[...] is ",
            id="a bad answer under another placement",
        ),
        pytest.param(
            {"on_oom": "x" * 100}, "line 1, record 'tiny', on_oom is 'xxx", id="long value"
        ),
    ],
)
def test_a_bad_field_is_named_with_its_value_and_the_rule(
    fields: dict[str, Any], want_message: str
) -> None:
    """Line, record, field, value, rule: enough to mend it."""
    with pytest.raises(VectorFormatError) as raised:
        _read(to_lines([make_record(**fields)]))

    assert raised.value.message.startswith(want_message)
    assert len(raised.value.message) < 300


@pytest.mark.parametrize(
    ("data", "want_message"),
    [
        pytest.param(b"", "there is no record in it", id="empty"),
        pytest.param(b"\n\n", "there is no record in it", id="blank lines"),
        pytest.param(
            b'{"id": "x", "zz": "\xff", "capacity_bytes": -5}',
            "line 1, capacity_bytes: Expected `int` >= 0",
            id="wrong, then bad UTF-8",
        ),
        pytest.param(b"hello\n", "line 1 is not JSON (JSON is malformed", id="text"),
        pytest.param(b"\xff\xfe{}\n", "line 1 is not JSON", id="binary"),
        pytest.param(b'{"id": "\xff"}\n', "line 1 is not JSON", id="bad UTF-8"),
        pytest.param(b'{"id": "a"\n', "line 1 is not JSON (Input data was truncated", id="cut"),
        pytest.param(b"[" * 100_000, "line 1, the record: Expected `object`", id="endless nesting"),
        pytest.param(
            b'{"id": ' + b'{"a":' * 100_000, "line 1, id: Expected `str`", id="nesting in a field"
        ),
        pytest.param(
            b'{"expect": ' + b'{"a":' * 100_000, "line 1 is not JSON (", id="nesting in a value"
        ),
        pytest.param(
            b'{"id": 7, "config": "', "line 1, id: Expected `str`, got `int`", id="wrong, then cut"
        ),
        pytest.param(b"[]\n", "line 1, a record without an id: Expected `object`", id="no object"),
        pytest.param(
            b'{"id": "a"}\n',
            "line 1, record 'a': Object missing required field `config`",
            id="bare",
        ),
        pytest.param(
            gzip.compress(to_lines([make_record()]))[:-9],
            "the gzip data ends early, after line",
            id="truncated gzip",
        ),
        pytest.param(
            gzip.compress(to_lines([make_record()]))[:-8] + b"\0" * 8,
            "the gzip data is damaged after line",
            id="gzip with a wrong check sum",
        ),
        pytest.param(
            gzip.compress(b"")[:10] + b"\xff" * 50, "the gzip data is damaged", id="bad gzip"
        ),
    ],
)
def test_a_file_that_is_no_vector_file_says_so(data: bytes, want_message: str) -> None:
    """One clear sentence instead of a traceback."""
    with pytest.raises(VectorFormatError) as raised:
        _read(data)

    assert raised.value.message.startswith(want_message)


def test_an_endless_line_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded, whatever a file holds; the bound is lowered here to spare the test's."""
    monkeypatch.setattr(vectors, "MAX_LINE_BYTES", 1000)
    read: list[int] = []

    class Endless(io.RawIOBase):
        def readable(self) -> bool:
            return True

        def readinto(self, buffer: Any) -> int:
            read.append(len(buffer))
            buffer[:] = b" " * len(buffer)
            return len(buffer)

    with pytest.raises(VectorFormatError, match=r"^line 1 is longer than 1000 bytes"):
        list(read_vectors(io.BufferedReader(Endless())))
    assert sum(read) < 100_000
