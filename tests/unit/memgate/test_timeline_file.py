"""Timeline files: what is written is read back."""

from __future__ import annotations

import gzip
import io
import zlib
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import memgate
from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.replay import replay
from memgate.errors import InputError, TimelineFileError
from memgate.nccl import NO_COMMUNICATION, Communicator, NcclSettings, NcclUse
from memgate.report import Reason
from memgate.timeline import Alloc, Category, Free, Label, Timeline
from memgate.timeline_file.document import FORMAT_VERSION, HEADER_BYTES
from memgate.timeline_file.reading import read_timeline
from memgate.timeline_file.recorded import RecordedTimeline
from memgate.timeline_file.writing import write_timeline
from memgate.units import GIB, MIB
from tests.timeline_files import (
    FIRST_FORMAT,
    change_file,
    close_document,
    make_plain,
    make_recorded,
    open_document,
    u32,
)


@pytest.mark.parametrize("recorded", [make_recorded(), make_plain()], ids=["all", "plain"])
def test_what_is_written_is_read_back(recorded: RecordedTimeline) -> None:
    """Every field; from bytes and from a stream."""
    file = write_timeline(recorded)

    assert read_timeline(file) == recorded
    assert read_timeline(io.BytesIO(file)) == recorded
    assert read_timeline(gzip.compress(file)) == recorded


def test_the_same_recording_is_the_same_bytes() -> None:
    """So that a question about it has the same id."""
    versions = {"torch": "2.9.1", "python": "3.11.9"}

    assert write_timeline(make_recorded(versions=versions)) == write_timeline(make_recorded())


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2**40)), min_size=1, max_size=60))
def test_any_program_is_read_back(steps: list[tuple[int, int]]) -> None:
    """A step allocates a block, or frees it if it is there."""
    live: set[int] = set()
    events: list[Alloc | Free] = []
    for block, size in steps:
        events.append(Free(block) if block in live else Alloc(block, size, block % 3))
        live ^= {block}
    recorded = make_plain(timeline=Timeline(events=tuple(events)), least_segments_bytes=len(live))

    assert read_timeline(write_timeline(recorded)) == recorded


def test_a_file_of_the_first_format_is_read() -> None:
    """Files outlive the memgate that wrote them."""
    recorded = memgate.read_timeline(FIRST_FORMAT)

    assert recorded.format_version == (1, 0)
    assert (recorded.engine, recorded.gpu.name) == ("phantom", "rtx-3060")
    assert (len(recorded.timeline.events), recorded.num_parameters) == (2362, 11689512)
    run = replay(recorded.timeline, parse_alloc_conf(recorded.alloc_conf), 64 * GIB)
    assert run.peak_allocated_bytes == 549_292_032


def test_a_file_without_a_later_key_is_read() -> None:
    """Version 1.0 knew nothing of sizes that depend on data."""
    document = open_document(write_timeline(make_recorded(least_segments_bytes=MIB)))
    del document["least_segments_bytes"]

    assert read_timeline(close_document(document, b"\x01\x00")) == make_recorded()


@given(
    st.lists(st.tuples(st.integers(1, 64), st.integers(1, 8), st.integers(0, 7))),
    st.none() | st.frozensets(st.sampled_from(["all_reduce", "all_gather"])),
    st.none() | st.integers(0, 64),
)
def test_what_nccl_is_used_for_comes_back(
    sizes: list[tuple[int, int, int]], collectives: frozenset[str] | None, most: int | None
) -> None:
    """Communicators, the version and the settings."""
    used = NcclUse(
        communicators=tuple(
            Communicator(
                num_ranks=nodes * on_node,
                ranks_on_node=on_node,
                local_peers=peers,
                collectives=collectives,
            )
            for nodes, on_node, peers in sizes
        ),
        version=(2, 21) if sizes else NO_COMMUNICATION.version,
        settings=NcclSettings(max_channels=most if sizes else None),
    )

    assert read_timeline(write_timeline(make_recorded(communication=used))).communication == used


def test_more_ranks_on_a_node_than_there_are_is_refused() -> None:
    """The file is broken, and the message names the field."""
    alone = Communicator(num_ranks=1, ranks_on_node=1)
    used = NcclUse(communicators=(alone,))
    document = open_document(write_timeline(make_recorded(communication=used)))
    document["nccl"]["communicators"][0]["ranks_on_node"] = 2

    with pytest.raises(TimelineFileError, match=r"nccl\.communicators"):
        read_timeline(close_document(document))


def test_a_later_minor_format_may_have_more_fields() -> None:
    """Which are ignored."""
    document = open_document(write_timeline(make_recorded())) | {"weather": ["fine"]}

    recorded = read_timeline(close_document(document, b"\x01\x09"))

    assert (recorded, recorded.format_version) == (make_recorded(), (1, 9))


def test_texts_are_made_to_fit() -> None:
    """A long command, a file name that is not UTF-8 or a colour must not cost a recording."""
    long, odd = "x" * 5000, "a\x1b[31m\udcff\nb"
    recorded = make_recorded(
        command=(long, odd), notes=(Reason(code="FEWER_STEPS", message=long),) * 200
    )

    read = read_timeline(write_timeline(recorded))

    assert read.command == ("x" * 3997 + "...", "a\N{REPLACEMENT CHARACTER}[31m\ufffd\nb")
    assert (len(read.notes), len(read.notes[0].message)) == (100, 4000)


def test_a_deep_layer_is_cut() -> None:
    """Layers are shown as a tree, and no network has 64 levels."""
    labels = (Label(Category.BATCH, "a." * 100), Label(Category.BATCH, "b" * 600))
    timeline = replace(make_plain().timeline, labels=labels)

    read = read_timeline(write_timeline(make_plain(timeline=timeline))).timeline.labels

    assert [label.layer for label in read] == [".".join("a" * 64), "b" * 500]
    deep = {"labels": [["batch", "a." * 64]], "indices": u32(0, 0)}
    with pytest.raises(TimelineFileError, match=r"labels.labels\[0\]\[1\] is 'a.a.*matching regex"):
        read_timeline(change_file("labels", deep, make_plain()))


def test_a_recording_may_lack_cudnn() -> None:
    """The runtime says so."""
    recorded = read_timeline(write_timeline(make_recorded(cudnn=None, versions={})))

    assert recorded.runtime == "torch of an unknown version, no cuDNN"
    assert make_recorded().runtime == "torch 2.9.1, cuDNN 9.8.0"


def test_more_events_than_a_file_takes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before a file is written that nobody can read."""
    monkeypatch.setattr("memgate.timeline_file.writing.MAX_EVENTS", 3)

    with pytest.raises(InputError, match="has 4 events, and a timeline file takes 3; record fewer"):
        write_timeline(make_plain())


def test_the_head_of_a_file_says_what_it_is() -> None:
    """Documented, so that ``file`` and other programs can recognise it."""
    file = write_timeline(make_plain())

    assert file[:HEADER_BYTES] == b"\x89MGTL\r\n\x1a\x01\x03"
    assert FORMAT_VERSION == (1, 3)
    assert "events" in msgspec.msgpack.decode(zlib.decompress(file[HEADER_BYTES:]))
