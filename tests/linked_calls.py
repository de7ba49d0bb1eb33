"""Calls and blocks of a trace that was never recorded, and rules applied to them."""

from __future__ import annotations

from memgate.blocks import MemoryBlock
from memgate.links import Call, LinkedBlock, LinkedSet
from memgate.orchestration import orchestrate
from memgate.plan import DeviceTraits
from memgate.residents import Residents
from memgate.rules import RULES
from memgate.timeline import Alloc, Phase, Timeline
from memgate.trace import OpEvent

AMPERE = DeviceTraits(compute_capability=(8, 6))
HOPPER = DeviceTraits(compute_capability=(9, 0))


def make_call(
    begin: float,
    name: str,
    *dims: tuple[int, ...],
    phase: Phase = Phase.FORWARD,
    iteration: int = 0,
) -> Call:
    """Make a call of an operator that takes 8 microseconds."""
    op = OpEvent(begin, begin + 8, 1, name, None, None, dims, ())
    return Call(op, phase, iteration, "layer", "", None)


def link(calls: list[Call], *blocks: tuple[int, float, float | None, int | None]) -> LinkedSet:
    """Make blocks of (size, alloc, free, call)."""
    linked = []
    for number, (size, alloc, free, call) in enumerate(blocks):
        ended = None if call is None else calls[call].op.end_us
        internal = ended is not None and free is not None and free <= ended
        linked.append(LinkedBlock(MemoryBlock(number, size, alloc, free, 1), call, internal))
    return LinkedSet(calls=tuple(calls), blocks=tuple(linked), diagnostics={})


def apply_rule(linked: LinkedSet, *, only: str = "", device: DeviceTraits = AMPERE) -> Timeline:
    """Apply one rule alone, beside the two that every plan begins with."""
    kept = {"without_internals", "without_host_memory", only}
    left_out = [rule.__name__ for rule in RULES if rule.__name__ not in kept]
    return orchestrate(linked, Residents(), device, without=left_out)


def sizes_of(timeline: Timeline) -> list[int]:
    """Return the sizes of all allocations, in order."""
    return [event.size_bytes for event in timeline.events if isinstance(event, Alloc)]
