"""The memory curve as a table."""

from __future__ import annotations

from memgate.allocator.config import AllocatorConfig
from memgate.allocator.replay import replay
from memgate.curves import make_curve
from memgate.timeline import (
    Alloc,
    Category,
    EmptyCache,
    Free,
    Label,
    Phase,
    PhaseStart,
    Timeline,
)
from tests.builders import AMPLE, mib


def test_every_event_has_a_row() -> None:
    """What was reserved and allocated after it, by category, and the phase it is in."""
    timeline = Timeline(
        events=(Alloc(0, mib(30)), Alloc(1, mib(50)), Free(1), EmptyCache()),
        labels=(Label(Category.PARAMETERS, ""), Label(Category.ACTIVATIONS, "fc")),
        phases=(PhaseStart(0, Phase.BETWEEN), PhaseStart(1, Phase.FORWARD)),
    )

    curve = make_curve(timeline, replay(timeline, AllocatorConfig(), AMPLE))

    assert list(curve["event"]) == [0, 1, 2, 3]
    assert list(curve["phase"]) == ["between", "forward", "forward", "forward"]
    assert list(curve["reserved_bytes"]) == [mib(30), mib(80), mib(80), mib(30)]
    assert list(curve["allocated_bytes"]) == [mib(30), mib(80), mib(30), mib(30)]
    assert list(curve["parameters_bytes"]) == [mib(30)] * 4
    assert list(curve["activations_bytes"]) == [0, mib(50), 0, 0]
    assert list(curve["gradients_bytes"]) == [0] * 4
    assert {f"{category.value}_bytes" for category in Category} <= set(curve)


def test_a_recording_has_neither_phases_nor_categories() -> None:
    """Nobody said what its blocks are."""
    timeline = Timeline(events=(Alloc(0, mib(30)),))

    curve = make_curve(timeline, replay(timeline, AllocatorConfig(), AMPLE))

    assert list(curve) == ["event", "reserved_bytes", "allocated_bytes"]
