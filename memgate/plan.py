"""A planned block: what the orchestration works on, between a trace's blocks and a timeline's.

And the properties of the GPU that it is planned for.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from memgate.links import Call
from memgate.timeline import Category, Phase

#: what outlives its phase, by the phase that made it
_LASTING = {
    Phase.BETWEEN: Category.BATCH,
    Phase.FORWARD: Category.ACTIVATIONS,
    Phase.BACKWARD: Category.GRADIENTS,
    Phase.OPTIMIZER: Category.OPTIMIZER_STATE,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTraits:
    """The properties of a GPU, and of the PyTorch on it, that decide sizes."""

    compute_capability: tuple[int, int]
    multiprocessors: int = 108
    #: major, minor
    torch_version: tuple[int, int] = (2, 14)


class PlannedBlock(NamedTuple):
    """A block on the device: when it comes, when it goes, what it is."""

    size_bytes: int
    alloc_us: float
    #: None: it stays
    free_us: float | None
    #: position of the call that makes it; None if no call does
    call: int | None
    category: Category
    #: freed before its call ends
    is_internal: bool = False


def categorize(
    calls: Sequence[Call], call: int | None, free_us: float | None, begins: Sequence[float]
) -> Category:
    """Say what a block is for: by the phase that made it, and by whether it outlives that."""
    if call is None:
        return Category.TEMPORARY
    made = calls[call]
    if free_us is not None:
        following = bisect_right(begins, free_us)
        if following < len(calls):
            then = calls[following]
            if then.phase is made.phase and then.iteration == made.iteration:
                return Category.TEMPORARY
    return _LASTING[made.phase]


Plan = list[PlannedBlock]


def plan_within(call: Call, position: int, size_bytes: int, category: Category) -> PlannedBlock:
    """Plan a block that a call makes after its results, and frees when it ends."""
    return PlannedBlock(size_bytes, call.op.end_us, call.op.end_us, position, category, True)
