"""Memory snapshots: what is read of them, and what was there before."""

from __future__ import annotations

import gzip
import io
from typing import Any

import pytest

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.replay import Replay, replay
from memgate.errors import AllocatorConfigError, SnapshotFormatError, UnsupportedAllocatorError
from memgate.snapshots import snapshot as snapshot_module
from memgate.snapshots.reading import DeviceHistory, read_histories, read_snapshot
from memgate.timeline import (
    Alloc,
    Category,
    EmptyCache,
    EventsPending,
    Free,
    Phase,
    RecordStream,
    StreamsDone,
)
from memgate.units import GIB, MIB
from tests.snapshots import (
    BACKWARD,
    BASE,
    EMPTY_CACHE,
    FORWARD,
    MODEL,
    OPTIMIZER,
    REAL_SNAPSHOTS,
    make_block,
    make_document,
    make_event,
    make_free,
    make_segment,
    read_document,
)

FREE = {"state": "inactive"}

#: of the device on which the real snapshots were written, without the context
CAPACITY = 8_318_222_336


def _codes(history: DeviceHistory) -> list[str]:
    return [doubt.code for doubt in history.doubts]


def _replay(history: DeviceHistory, capacity: int = 64 * GIB) -> Replay:
    return replay(history.timeline, parse_alloc_conf(history.alloc_conf), capacity)


def _read_one(document: Any, **options: Any) -> DeviceHistory:
    (history,) = read_document(document, **options)
    return history


@pytest.mark.parametrize(
    ("name", "want_doubts", "want_reserved", "want_allocated"),
    [
        ("adam-torch-2.14", [], 85983232, 79233536),
        ("late-torch-2.14", [], 106954752, 81777664),
        ("wrapped-torch-2.14", ["HISTORY_WRAPPED"], 85983232, 79233536),
        ("oom-torch-2.6", ["ENDED_IN_OOM"], 7604273152, 7583156736),
        ("private-torch-2.6", [], 111149056, 87936000),
        ("streams-torch-2.14", [], 136314880, 94964224),
        ("late_expandable-torch-2.6", [], 85983232, 79905280),
    ],
)
def test_a_real_snapshot_is_replayed(
    name: str, want_doubts: list[str], want_reserved: int, want_allocated: int
) -> None:
    """With the peaks that torch counted; tests/integration/test_snapshots.py has more of them."""
    with (REAL_SNAPSHOTS / f"{name}.pickle.gz").open("rb") as stream:
        (history,) = read_histories(read_snapshot(stream))

    run = _replay(history, CAPACITY)

    assert _codes(history) == want_doubts
    assert run.peak_reserved_bytes == want_reserved
    assert run.peak_allocated_bytes == want_allocated


def test_blocks_are_labelled_by_the_stacks_of_their_life() -> None:
    """Where it was allocated, and where it was freed; what no stack tells is other."""
    lives = [
        (MODEL, None, Category.PARAMETERS),
        (FORWARD, BACKWARD, Category.ACTIVATIONS),
        (FORWARD, FORWARD, Category.TEMPORARY),
        (BACKWARD, OPTIMIZER, Category.GRADIENTS),
        (OPTIMIZER, None, Category.OPTIMIZER_STATE),
        (FORWARD, [], Category.OTHER),
        ([], None, Category.OTHER),
        ([{"filename": "", "name": "at::cuda::getNewWorkspace()"}], [], Category.WORKSPACE),
        ([{"filename": "/torch/nn/modules/a.py", "name": "helper"}, "x", {}], None, Category.OTHER),
    ]
    trace = []
    kept = []
    for number, (born, died, _) in enumerate(lives):
        address = BASE + number * MIB
        trace.append(make_event("alloc", address, frames=born))
        if died is None:
            kept.append(make_block(address=address))
        else:
            trace += make_free(address, frames=died)

    timeline = _read_one(make_document([make_segment(*kept)], trace)).timeline

    assert [label.category for label in timeline.labels] == [want for *_, want in lives]
    assert [start.phase for start in timeline.phases][:3] == [
        Phase.BETWEEN,
        Phase.FORWARD,
        Phase.BACKWARD,
    ]


def test_what_was_there_before_the_first_event_is_rebuilt() -> None:
    """Blocks that stayed, blocks that were freed since, and what was cached between them."""
    segment = make_segment(make_block(2 * MIB), make_block(13 * MIB, **FREE), make_block(5 * MIB))
    trace = make_free(BASE + 6 * MIB, 4 * MIB - 100)

    history = _read_one(make_document([segment], trace))

    (resident,) = history.timeline.residents
    assert resident.pieces == (
        (0, 2 * MIB),
        (None, 4 * MIB),
        (1, 4 * MIB),
        (None, 5 * MIB),
        (2, 5 * MIB),
    )
    run = _replay(history)
    assert (run.peak_reserved_bytes, run.peak_allocated_bytes) == (20 * MIB, 11 * MIB)
    assert "HISTORY_STARTS_LATE" in [note.code for note in history.notes]


def test_a_gap_that_was_too_small_to_split_belongs_to_the_block_before() -> None:
    """In the large pool what is left of a block must be more than 1 MiB to be kept apart."""
    segment = make_segment(make_block(12 * MIB, **FREE))
    history = _read_one(make_document([segment], make_free(BASE, 12 * MIB - 5000)))

    assert history.timeline.residents[0].pieces == ((0, 12 * MIB),)


def test_on_a_device_too_small_for_what_was_cached_blocks_are_asked_for() -> None:
    """What was cached on a larger one is not needed."""
    segment = make_segment(make_block(2 * MIB), make_block(98 * MIB, **FREE))
    history = _read_one(make_document([segment], [make_event("alloc", BASE + 2 * MIB)]))

    run = _replay(history, 30 * MIB)

    assert (run.oom, run.peak_reserved_bytes) == (None, 22 * MIB)


def test_segments_come_and_go_backwards() -> None:
    """One that was given back was there, one that was taken was not; the peak is between."""
    segment = make_segment(make_block(20 * MIB, **FREE), address=BASE + GIB)
    trace = [
        make_event("segment_free", BASE, 40 * MIB, frames=EMPTY_CACHE),
        make_event("segment_free", BASE + 50 * MIB, 2 * MIB, frames=EMPTY_CACHE),
        make_event("segment_alloc", BASE + GIB, 20 * MIB),
        make_event("alloc", BASE + GIB, 2 * MIB),
        *make_free(BASE + GIB, 2 * MIB),
    ]

    history = _read_one(make_document([segment], trace))

    assert [one.is_small for one in history.timeline.residents] == [False, True]
    assert history.timeline.events[0] == EmptyCache()
    assert "42.00 MiB" in history.notes[0].message
    assert _replay(history).peak_reserved_bytes == 42 * MIB


@pytest.mark.parametrize(
    ("frames", "follows", "want"),
    [
        (EMPTY_CACHE, "segment_alloc", 1),
        ([], "segment_alloc", 0),
        ([], "oom", 0),
        ([], "alloc", 1),
        (FORWARD, "alloc", 0),
    ],
)
def test_who_gave_memory_back_shows_in_the_stack_or_in_what_follows(
    frames: Any, follows: str, want: int
) -> None:
    """What the program did is replayed, what the allocator did is not."""
    trace = [
        make_event("segment_free", BASE, 20 * MIB, frames=frames),
        make_event("segment_free", BASE + GIB, 20 * MIB, frames=frames),
        make_event(follows, BASE + 2 * GIB, 20 * MIB, frames=frames),
    ]
    events = _read_one(make_document([], trace)).timeline.events

    assert events.count(EmptyCache()) == want


def test_a_free_that_was_completed_late_waits_as_long() -> None:
    """For another stream; at the start, in the history, and at the end."""
    address = BASE + 8 * MIB
    segment = make_segment(
        make_block(2 * MIB, state="active_pending_free"), make_block(18 * MIB, **FREE)
    )
    trace = [
        make_event("free_completed", BASE + 4 * MIB, 2 * MIB),
        make_event("alloc", address, 2 * MIB, stream=7),
        make_event("free_requested", address, 2 * MIB, stream=7),
        make_event("free_requested", BASE, 2 * MIB),
        make_event("free_completed", address, 2 * MIB, stream=7),
    ]

    timeline = _read_one(make_document([segment], trace)).timeline

    assert timeline.events == (
        *(Alloc(0, 2 * MIB), Alloc(1, 2 * MIB)),
        *(EventsPending(1), RecordStream(1, 1), Free(1)),
        StreamsDone(1),
        *(Alloc(2, 2 * MIB, 2), RecordStream(2, 1), Free(2)),
        *(RecordStream(0, 1), Free(0)),
        StreamsDone(2),
    )


@pytest.mark.parametrize("written_pool", [None, (0, 1)], ids=["torch 2.6", "later"])
def test_private_pools_are_streams_that_keep_their_cache(written_pool: Any) -> None:
    """By the pool of an event, or by that of the segment at the end."""
    pool = {} if written_pool is None else {"pool_id": written_pool}
    own = make_segment(make_block(20 * MIB), address=BASE + GIB, segment_pool_id=(0, 1))
    trace = [
        make_event("segment_alloc", BASE + GIB, 20 * MIB, **pool),
        make_event("alloc", BASE + GIB, 20 * MIB, **pool),
        make_event("alloc", BASE + 2 * GIB, MIB),
        *make_free(BASE + 2 * GIB, MIB),
        make_event("alloc", BASE, MIB),
    ]
    timeline = _read_one(make_document([make_segment(make_block()), own], trace)).timeline

    (private,) = timeline.private_streams
    assert timeline.events[0] == Alloc(0, 20 * MIB, private)
    assert timeline.events[1] == Alloc(1, MIB, 0)


def test_the_end_of_a_private_pool_gives_back_its_memory_only() -> None:
    """Segments of it are given back: nobody uses it any more."""
    trace = [
        make_event("alloc", BASE, 20 * MIB, pool_id=(0, 1)),
        *make_free(BASE, 20 * MIB, pool_id=(0, 1)),
        make_event("segment_free", BASE, 20 * MIB, pool_id=(0, 1)),
    ]
    timeline = _read_one(make_document([], trace)).timeline

    assert timeline.events[-1] == EmptyCache(2)


def test_expandable_segments_are_rebuilt_as_one_stretch() -> None:
    """Of each stream and pool; what was mapped since was not there."""
    more: dict[str, Any] = {"is_expandable": True}
    small = make_segment(make_block(2 * MIB), address=BASE, kind="small", **more)
    large = make_segment(make_block(60 * MIB), address=BASE + GIB, **more)
    upper = make_segment(make_block(20 * MIB), address=BASE + 2 * GIB, **more)
    trace = [
        make_event("segment_unmap", BASE + GIB + 500 * MIB, 20 * MIB, frames=EMPTY_CACHE),
        make_event("segment_map", BASE + GIB + 40 * MIB, 20 * MIB),
        make_event("segment_map", BASE - MIB, 2 * MIB),
    ]
    document = make_document([small, large, upper], trace, conf="expandable_segments:True")

    history = _read_one(document)

    (only,) = history.timeline.residents
    assert only.pieces == ((0, 60 * MIB), (1, 20 * MIB))


def test_a_map_without_any_expandable_segment_contradicts() -> None:
    """The end would have one."""
    history = _read_one(make_document([], [make_event("segment_map")]))

    assert "HISTORY_CONTRADICTS" in _codes(history)


def test_each_device_has_a_history_and_one_can_be_picked() -> None:
    """Those on which nothing happened are left out."""
    segments = [make_segment(make_block(), device=2), make_segment(make_block(), device=5)]
    document = make_document(segments, [], [make_event("alloc")], [])

    assert [history.device for history in read_document(document)] == [1, 2, 5]
    assert _read_one(document, device=5).device == 5
    with pytest.raises(SnapshotFormatError, match=r"device 3 is not in the snapshot.*1, 2, 5"):
        read_document(document, device=3)


def test_the_settings_of_the_file_count_unless_others_are_given() -> None:
    """Wrong ones of the file are said to be the file's."""
    segment = make_segment(make_block(20 * MIB))
    document = make_document([segment], conf="max_split_size_mb:64")

    assert _read_one(document).alloc_conf == "max_split_size_mb:64"
    assert _read_one(document, alloc_conf="").alloc_conf == ""
    with pytest.raises(AllocatorConfigError, match="the snapshot's own settings: "):
        read_document(make_document([segment], conf="magic:1"))
    with pytest.raises(UnsupportedAllocatorError, match="the snapshot's own settings: "):
        read_document(make_document([segment], conf="backend:cudaMallocAsync"))
    with pytest.raises(AllocatorConfigError, match=r"^allocator setting"):
        read_document(document, alloc_conf="magic:1")


@pytest.mark.parametrize(
    ("document", "want"),
    [
        ([], "it has no 'segments'"),
        ({"device_traces": []}, "it has no 'segments'"),
        ({"segments": 1}, "'segments' of the snapshot is not a list"),
        ({"segments": []}, "nothing was allocated on any device"),
        ({"segments": ["x"]}, "'device' of an entry"),
        (make_document([make_segment(make_block())] * 2), "two blocks in use at address 0x"),
        ({"segments": [{"address": -1}]}, "'address' of an entry"),
        ({"segments": [], "device_traces": [1]}, "is not a list of lists"),
        ({"segments": [], "device_traces": [[]] * 2000}, "more than 1,024 items"),
        ({"segments": [], "device_traces": [[1]]}, "'action' of an entry"),
        ({"segments": [], "device_traces": [[{"action": "alloc"}]]}, "'addr' of an entry"),
        (
            make_document(
                [], [make_event("alloc", size=2**60 - 1, address=at) for at in (1, 2, 3)]
            ),
            "8",
        ),
    ],
)
def test_what_is_not_a_snapshot_is_refused_by_the_field(document: Any, want: str) -> None:
    """With the rule; and so is more memory than any device has."""
    with pytest.raises(SnapshotFormatError, match=want):
        read_document(document)


def test_events_and_blocks_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As often as they are visited."""
    monkeypatch.setattr(snapshot_module, "MAX_EVENTS", 10)
    monkeypatch.setattr(snapshot_module, "MAX_BLOCKS", 3)

    with pytest.raises(SnapshotFormatError, match="more than 10 events"):
        read_document(make_document([], *[[make_event("alloc")] * 6] * 2))
    with pytest.raises(SnapshotFormatError, match="more than 3 blocks"):
        read_document(make_document([make_segment(*[make_block()] * 4)]))


def test_old_fields_may_be_missing() -> None:
    """Addresses of blocks, and settings, are younger than snapshots."""
    segment = make_segment(make_block(2 * MIB), make_block(18 * MIB))
    for block in segment["blocks"]:
        del block["address"]
    trace = [make_event("alloc", BASE + GIB, MIB), *make_free(BASE + GIB, MIB)]
    document = {"segments": [segment], "device_traces": [trace]}

    assert [piece for piece, _ in _read_one(document).timeline.residents[0].pieces] == [0, 1]


@pytest.mark.parametrize(
    ("data", "want"),
    [
        (gzip.compress(b"\x80\x02N.")[:-9], "is cut off"),
        (b"\x1f\x8bnothing", "is broken"),
        (gzip.compress(b"N" * 5000), "larger than 1.95 KiB unpacked"),
        (b"N" * 5000, "larger than 1.95 KiB unpacked"),
    ],
    ids=["cut off", "broken", "large once unpacked", "large"],
)
def test_a_file_is_unpacked_within_bounds(data: bytes, want: str) -> None:
    """Plain or gzip."""
    with pytest.raises(SnapshotFormatError, match=want):
        read_snapshot(io.BytesIO(data), max_bytes=2000)
