"""Rows of the real allocator to a timeline, and labels for its blocks."""

from __future__ import annotations

from memgate.timeline import (
    Alloc,
    Category,
    EmptyCache,
    Free,
    Label,
    Phase,
    PhaseStart,
    RecordStream,
    SetFraction,
)
from memgate_worker.engines.phantom.labels import label_blocks, locate_phases
from memgate_worker.engines.phantom.tracker import Allocation, Row, to_events
from memgate_worker.hook.memgate_hook.marks import LayerMark, PhaseMark, TensorMark

ALLOC, REQUESTED, COMPLETED, SEGMENT, SEGMENT_FREE = range(5)


def test_allocations_and_frees_become_events() -> None:
    """Addresses become ids, streams are numbered, segments are left to the simulator."""
    rows = [
        Row(SEGMENT, 4096, 2 << 20, 0),
        Row(ALLOC, 4096, 100, 0),
        Row(ALLOC, 8192, 200, 777),
        Row(REQUESTED, 4096, 100, 0),
        Row(COMPLETED, 4096, 100, 0),
        Row(ALLOC, 4096, 50, 0),
    ]

    events, blocks, num_before, _ = to_events(rows)

    assert events == [Alloc(0, 100, 0), Alloc(1, 200, 1), Free(0), Alloc(2, 50, 0)]
    assert blocks == [
        Allocation(0, 4096, 1, 3),
        Allocation(1, 8192, 2, None),
        Allocation(2, 4096, 5, None),
    ]
    assert num_before == [0, 0, 1, 2, 3, 3, 4]


def test_a_free_that_completes_later_waited_for_a_stream() -> None:
    """The block is recorded on some other stream, as it must have been."""
    rows = [
        Row(ALLOC, 4096, 100, 0),
        Row(REQUESTED, 4096, 100, 0),
        Row(ALLOC, 8192, 100, 0),
        Row(COMPLETED, 4096, 100, 0),
    ]

    events, *_ = to_events(rows)

    assert isinstance(events[1], RecordStream)
    assert events[2] == Free(0)


def test_private_pools_are_streams_of_their_own() -> None:
    """They keep what is cached there; if one ends, only its own memory is given back."""
    rows = [
        Row(ALLOC, 4096, 100, 0),
        Row(ALLOC, 8192, 100, -1),
        Row(REQUESTED, 8192, 100, -1),
        Row(COMPLETED, 8192, 100, -1),
        Row(SEGMENT_FREE, 8192, 2 << 20, -1),
        Row(SEGMENT_FREE, 9216, 2 << 20, -1),
        Row(SEGMENT_FREE, 1024, 2 << 20, 0),
    ]

    events, _, _, private = to_events(rows)

    assert private == {1}
    assert events[1] == Alloc(1, 100, 1)
    assert events[3:] == [EmptyCache(1), EmptyCache()]


def test_segments_given_back_mean_that_the_cache_was_emptied() -> None:
    """On a device with ample memory nothing else gives them back; many are one call."""
    rows = [
        Row(ALLOC, 4096, 100, 0),
        Row(SEGMENT_FREE, 1 << 30, 2 << 20, 0),
        Row(SEGMENT_FREE, 2 << 30, 2 << 20, 0),
        Row(ALLOC, 8192, 100, 0),
    ]

    events, *_ = to_events(rows)

    assert events == [Alloc(0, 100), EmptyCache(), Alloc(1, 100)]


def test_a_limit_that_a_script_sets_has_its_place() -> None:
    """It makes no row of its own, so it comes with the position it was set at."""
    rows = [Row(ALLOC, 4096, 100, 0), Row(ALLOC, 8192, 100, 0)]

    events, *_ = to_events(rows, [(1, SetFraction(0.5))])

    assert events == [Alloc(0, 100), SetFraction(0.5), Alloc(1, 100)]


PHASES = [
    PhaseMark(0, Phase.BETWEEN),
    PhaseMark(20, Phase.FORWARD),
    PhaseMark(30, Phase.BACKWARD),
    PhaseMark(40, Phase.OPTIMIZER),
]


def _label(begin: int, end: int | None, **marks: list[object]) -> Label:
    block = Allocation(0, 4096, begin, end)
    (label,) = label_blocks(
        [block],
        phases=PHASES,
        layers=marks.get("layers", []),  # type: ignore[arg-type]
        tensors=marks.get("tensors", []),  # type: ignore[arg-type]
    )
    return label


def test_a_phase_tells_what_a_block_is_for() -> None:
    """Batch, activation, temporary, workspace: by when it came and when it went."""
    assert _label(42, None).category is Category.TEMPORARY
    assert _label(12, 50).category is Category.BATCH
    assert _label(22, 35).category is Category.ACTIVATIONS
    assert _label(22, 25).category is Category.TEMPORARY
    assert _label(32, 35).category is Category.TEMPORARY
    assert _label(22, None).category is Category.WORKSPACE
    assert _label(2, 5).category is Category.TEMPORARY


def test_phases_are_found_among_events() -> None:
    """Rows that make no event are skipped; so are phases without any event."""
    marks = [PhaseMark(0, Phase.BETWEEN), PhaseMark(2, Phase.FORWARD), PhaseMark(5, Phase.BACKWARD)]

    assert locate_phases(marks, [0, 0, 1, 2, 2, 2, 3]) == (
        PhaseStart(0, Phase.BETWEEN),
        PhaseStart(1, Phase.FORWARD),
        PhaseStart(2, Phase.BACKWARD),
    )
    assert locate_phases(marks, [0, 0, 1, 2, 2, 2])[-1].phase is Phase.FORWARD


def test_a_tensor_that_was_seen_is_what_it_was_seen_as() -> None:
    """Only while the block was there; what lay at the address before or after is another."""
    seen: list[object] = [TensorMark(40, 4096, Category.GRADIENTS, "fc")]

    assert _label(32, 45, tensors=seen) == Label(Category.GRADIENTS, "fc")
    assert _label(32, 35, tensors=seen).category is Category.TEMPORARY
    assert _label(41, 45, tensors=seen).category is Category.TEMPORARY


def test_what_cudnn_was_lent_is_a_workspace_of_its_layer() -> None:
    """A block that is gone before its phase is over would else be temporary."""
    block = Allocation(0, 4096, 22, 25)
    layers = [LayerMark(21, "conv1", True), LayerMark(26, "conv1", False)]

    (label,) = label_blocks(
        [block], phases=PHASES, layers=layers, tensors=[], workspaces=frozenset({0})
    )

    assert label == Label(Category.WORKSPACE, "conv1")


def test_a_block_belongs_to_the_innermost_running_module() -> None:
    """Modules nest; one that raised and never ended is closed by its parent."""
    layers: list[object] = [
        LayerMark(20, "", True),
        LayerMark(21, "block", True),
        LayerMark(22, "block.conv", True),
        LayerMark(24, "block", False),
        LayerMark(28, "", False),
    ]

    assert _label(23, 35, layers=layers).layer == "block.conv"
    assert _label(25, 35, layers=layers).layer == ""
    assert _label(29, 35, layers=layers).layer == ""
    assert _label(5, 35, layers=layers).layer == ""
