"""Timeline files that break a rule are refused by name."""

from __future__ import annotations

import gzip
import random
import zlib
from typing import Any

import msgspec
import pytest

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.replay import replay
from memgate.errors import TimelineFileError, UnsupportedAllocatorError
from memgate.timeline import EventsPending
from memgate.timeline_file.document import HEADER_BYTES, MAGIC, ReadLimits
from memgate.timeline_file.reading import read_timeline
from memgate.timeline_file.writing import write_timeline
from memgate.units import GIB, MIB
from tests.timeline_files import (
    FIRST_FORMAT,
    change_file,
    close_document,
    i32,
    make_plain,
    make_recorded,
    pack_body,
    u32,
)

# --- what is not a timeline file, or too much of one


@pytest.mark.parametrize(
    ("file", "want"),
    [
        (b"", "not a timeline file, by its first bytes"),
        (b'{"traceEvents": []}', "not a timeline file, by its first bytes"),
        (MAGIC[:5], "not a timeline file, by its first bytes"),
        (MAGIC + b"\x01", "the file is cut off"),
        (MAGIC + b"\x01\x00", "the file is cut off"),
        (MAGIC + b"\x01\x00junk", "the file is broken: Error -3"),
        (MAGIC + b"\x00\x00", "format is 0.0: the first format is 1.0"),
        (
            MAGIC + b"\x02\x01",
            "format is 2.1: this memgate reads timeline files up to format 1; update it, pip",
        ),
        (write_timeline(make_recorded())[:-4], "the file is cut off"),
        (write_timeline(make_recorded()) + b"more", "the file has 4 bytes after its end"),
        (gzip.compress(write_timeline(make_recorded()))[:-12], "the gzip file is cut off"),
        (pack_body(b""), "the file is broken: Input data was truncated"),
        (pack_body(b"\xc1"), "the file is broken: "),
        (pack_body(b"\x91" * 100_000), "the document: Expected `object`, got `array`"),
        (pack_body(b"\x81\xa1x" + b"\x91" * 100_000), "the file is broken: maximum recursion"),
        (pack_body(b"\x81\xa7command\x91\xa2\xff\xff"), "the file is broken: "),
        (close_document({}), "the document: Object missing required field `alloc_conf`"),
    ],
)
def test_what_is_not_a_timeline_file_is_refused(file: bytes, want: str) -> None:
    """With what it is, or is not."""
    with pytest.raises(TimelineFileError) as raised:
        read_timeline(file)

    assert want in raised.value.message


def test_a_file_that_is_too_large_is_refused_before_it_is_decoded() -> None:
    """However little it is while it is packed: a hundred kilobytes here."""
    bomb = MAGIC + b"\x01\x00" + zlib.compress(bytes(100 * MIB), 9)
    twice = gzip.compress(bytes(100 * MIB))

    with pytest.raises(TimelineFileError, match=r"larger than 64.00 MiB unpacked; record fewer"):
        read_timeline(bomb)
    with pytest.raises(TimelineFileError, match=r"larger than 32.00 MiB unpacked; record less"):
        read_timeline(twice)
    with pytest.raises(TimelineFileError, match=r"larger than 10 bytes unpacked"):
        read_timeline(write_timeline(make_plain()), ReadLimits(max_unpacked_bytes=10))


def test_a_reader_may_take_fewer_events() -> None:
    """What it takes is named."""
    with pytest.raises(TimelineFileError, match=r"events.actions is 4 long: the limit is 3"):
        read_timeline(write_timeline(make_plain()), ReadLimits(max_events=3))


# --- rules


@pytest.mark.parametrize(
    ("path", "value", "want"),
    [
        ("engine", "measured", "engine is 'measured': Invalid enum value 'measured'"),
        ("num_parameters", -1, "num_parameters is -1: Expected `int` >= 0"),
        ("num_parameters", 2**63, "num_parameters is 9223372036854775808: Expected `int` <="),
        ("num_parameters", "7", "num_parameters is '7': Expected `int`, got `str`"),
        ("command", ["x"] * 1001, "Expected `array` of length <= 1000"),
        ("command.1", "x" * 4001, "Expected `str` of length <= 4000"),
        ("command.1", "\x1b[2J", "command[1] is '\\x1b[2J': Expected `str` matching regex"),
        ("versions", {"a": 1}, "Expected `str`, got `int`"),
        ("versions", {"a" * 300: "1"}, "Expected `str` of length <= 200"),
        ("cudnn", 9, "cudnn is 9: Expected `str | null`, got `int`"),
        ("alloc_conf", "nonsense:1", "alloc_conf is 'nonsense:1': "),
        ("gpu.multiprocessors", 0, "gpu.multiprocessors is 0: Expected `int` >= 1"),
        (
            "gpu.compute_capability",
            [8],
            "gpu.compute_capability is [8]: Expected `array` of length",
        ),
        ("gpu.memory_bytes", 2**51, "gpu.memory_bytes is 2251799813685248: Expected `int` <="),
        ("notes.0", ["FITS", "lies"], "Expected `str` matching regex"),
        ("notes.0", ["lower", "x"], "notes[0][0] is 'lower': Expected `str` matching regex"),
        ("batches.0.shape", [-1], "batches[0].shape[0] is -1: Expected `int` >= 0"),
        ("batches.0.shape", [1] * 17, "Expected `array` of length <= 16"),
        ("marks.0", [0, "dream"], "marks[0][1] is 'dream': Invalid enum value 'dream'"),
        ("shares", {"x": float("nan")}, "Expected `float`"),
    ],
)
def test_a_value_that_breaks_a_rule_is_named(path: str, value: Any, want: str) -> None:
    """The field, the value where it is short, and the rule; and what to do."""
    with pytest.raises(TimelineFileError) as raised:
        read_timeline(change_file(path, value))

    assert want in raised.value.message
    assert raised.value.message.endswith("record it again: memgate run -o FILE")


def test_a_large_value_is_not_shown() -> None:
    """Looking for it would take more memory than it is worth."""
    with pytest.raises(TimelineFileError) as raised:
        read_timeline(change_file("architectures", ["x" * 100] * 1000))

    assert raised.value.message.startswith("architectures: Expected `array` of length <= 100;")


def test_settings_that_are_not_simulated_stay_unsupported() -> None:
    """That is a limit of ours, and not the file's fault."""
    with pytest.raises(UnsupportedAllocatorError, match="the recording's own settings: "):
        read_timeline(change_file("alloc_conf", "backend:cudaMallocAsync"))


@pytest.mark.parametrize(
    ("path", "value", "want"),
    [
        ("events.actions", b"", "events.actions is empty: a recording has events"),
        ("events.actions", b"\x07" * 4, "events.actions is 7: an action is below 7"),
        (
            "events.actions",
            b"\x00" * 4,
            "events.size_indices is 2 entries long: the actions need 4",
        ),
        (
            "events.actions",
            b"\x00\x00\x01\x03",
            "events.blocks is 4 entries long: the actions need",
        ),
        ("events.blocks", i32(0, 1, -1), "events.blocks is 3 entries long: the actions need 4"),
        ("events.blocks", b"\x00" * 15, "events.blocks is 3.75 entries long: the actions need 4"),
        ("events.blocks", i32(-1, 1, -1, 1), "events.blocks is -1: a block has a number up to"),
        ("events.blocks", i32(2**31 - 1, 1, -1, 1), "events.blocks is 2147483648: a block has"),
        ("events.blocks", i32(0, 0, 0, 0), "event 1 is an allocation of 0: it is allocated"),
        ("events.blocks", i32(0, 1, 5, 1), "event 2 is a free of 6: it is not allocated"),
        ("events.size_indices", u32(0, 1), "events.size_indices is 1: an index is below 1"),
        ("events.stream_indices", u32(9, 0), "events.stream_indices is 9: an index is below 1"),
        ("events.sizes", [2**44], "events.sizes[0] is 17592186044416: Expected `int` <="),
        ("events.sizes", [-5], "events.sizes[0] is -5: Expected `int` >= 0"),
        ("events.streams", [-1], "events.streams[0] is -1: Expected `int` >= 0"),
        ("events.values", [1], "events.values is 1 entries long: the actions need 0"),
        ("labels.indices", u32(0), "labels.indices is 0: an index is below 0"),
        ("labels.indices", b"\x00", "labels.indices is 1 bytes: a column is of numbers of 4 bytes"),
        (
            "labels",
            {"labels": [["batch", ""]], "indices": u32(0)},
            "labels.indices is 1 entries long: there are none, or one for each of 2 blocks",
        ),
        ("labels.labels", [["magic", ""]], "labels.labels[0][0] is 'magic': Invalid enum value"),
        ("phases.kinds", b"\x00", "phases.kinds is 1 bytes: there are 0 phases"),
        ("phases", {"starts": u32(0), "kinds": b"\x04"}, "phases.kinds is 4: a phase is below 4"),
        ("phases", {"starts": u32(4), "kinds": b"\x01"}, "phases.starts is 4: there are 4 events"),
        (
            "phases",
            {"starts": u32(1, 1), "kinds": b"\x01\x02"},
            "phases.starts[1] is 1: it begins after 1",
        ),
        (
            "phases",
            {"starts": u32(1, 2), "kinds": b"\x01\x01"},
            "phases.kinds: a phase is another than the one before",
        ),
        ("dispensable", b"123", "dispensable is 3 bytes: a column is of numbers of 4 bytes"),
        ("marks", [[5, "load"]], "marks[0] is 5: there are 4 events"),
        ("marks", [[0, "load", 3]], "marks[0] is step 3: load has no steps"),
        (
            "marks",
            [[3, "train", 0], [2, "evaluate"]],
            "marks[1] is 2: marks are in order, and the one before is 3",
        ),
    ],
)
def test_columns_that_do_not_match_are_named(path: str, value: Any, want: str) -> None:
    """The rules that concern several values: no program makes such events."""
    with pytest.raises(TimelineFileError) as raised:
        read_timeline(change_file(path, value, make_plain()))

    assert want in raised.value.message


@pytest.mark.parametrize(
    ("at", "value", "want"),
    [
        (0, 2, "event 3 (EventsPending) is 2: pending is 0 or 1"),
        (0, None, "event 3 (EventsPending) is None: pending is 0 or 1"),
        (2, -1, "event 7 (EmptyCache) is -1: a stream is a whole number, or nil"),
        (2, 1.5, "event 7 (EmptyCache) is 1.5: a stream is a whole number, or nil"),
        (4, 1.5, "event 9 (SetFraction) is 1.5: a fraction is between 0 and 1"),
        (4, float("nan"), "event 9 (SetFraction) is nan: a fraction is between 0 and 1"),
        (4, None, "event 9 (SetFraction) is None: a fraction is between 0 and 1"),
    ],
)
def test_values_of_rare_events_are_checked(at: int, value: Any, want: str) -> None:
    """Each by its own rule."""
    with pytest.raises(TimelineFileError) as raised:
        read_timeline(change_file(f"events.values.{at}", value))

    assert want in raised.value.message


def test_a_block_that_is_gone_is_not_used_by_a_stream() -> None:
    """Only what is allocated is."""
    blocks = i32(0, 1, 1, 0, 0, 1, 0, 0)

    with pytest.raises(TimelineFileError, match="event 2 is a use of 2: it is not allocated"):
        read_timeline(change_file("events.blocks", blocks))


def test_whole_numbers_that_mean_the_same_are_taken() -> None:
    """Other implementations may write 1.0 for 1."""
    recorded = read_timeline(change_file("events.values.0", 1.0))

    assert recorded.timeline.events[3] == EventsPending(1)
    assert recorded == make_recorded()


# --- damage


def _damage(data: bytes, chance: random.Random) -> bytes:
    """Change, flip, cut out or repeat something in one to four places."""
    damaged = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at, length = chance.randrange(len(damaged)), chance.randint(1, 20)
        kind = chance.randrange(4)
        if kind == 0:
            damaged[at] = chance.randrange(256)
        elif kind == 1:
            damaged[at] ^= 1 << chance.randrange(8)
        elif kind == 2:
            del damaged[at : at + length]
        else:
            damaged[at:at] = damaged[at : at + length]
    return bytes(damaged)


def _change_leaf(value: Any, chance: random.Random) -> Any:
    """Change one value somewhere in a document."""
    if isinstance(value, dict | list) and value:
        key = chance.choice(list(value) if isinstance(value, dict) else range(len(value)))
        copy: Any = value.copy()
        copy[key] = _change_leaf(value[key], chance)
        return copy
    if isinstance(value, bytes) and value:
        at = chance.randrange(len(value))
        return value[:at] + bytes([chance.randrange(256)]) + value[at + 1 :]
    if isinstance(value, int):
        return chance.choice([value + 1, value - 1, 0, -1, 2**31, 2**63 - 1, value / 2])
    return chance.choice([None, "", "text", -1, [], {}, b"bytes", 1.5, True])


def _mutate(file: bytes, number: int, chance: random.Random) -> bytes:
    """Damage the file; or what is packed in it, which no checksum protects; or one value of it."""
    body = zlib.decompress(file[HEADER_BYTES:])
    if number % 3 == 0:
        return _damage(file, chance)
    if number % 3 == 1:
        return pack_body(_damage(body, chance))
    return close_document(_change_leaf(msgspec.msgpack.decode(body), chance))


def test_a_thousand_mutations_are_refused_or_still_valid() -> None:
    """Nothing else comes out of the reader, and what it takes can be written and replayed."""
    chance = random.Random(20)
    file = FIRST_FORMAT.read_bytes()
    outcomes = {"refused": 0, "valid": 0}
    for number in range(1000):
        try:
            recorded = read_timeline(_mutate(file, number, chance))
        except TimelineFileError:
            outcomes["refused"] += 1
            continue
        assert read_timeline(write_timeline(recorded)) == recorded
        replay(recorded.timeline, parse_alloc_conf(recorded.alloc_conf), 64 * GIB)
        outcomes["valid"] += 1

    assert min(outcomes.values()) > 50, outcomes
