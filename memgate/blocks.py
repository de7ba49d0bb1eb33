"""Stage 2: Trace -> BlockSet: each allocation with the free that ended it.

An address is used again and again, so pairs are found by walking through time (Algorithm 1 of the
VeritasEst paper). What cannot be paired is counted, neither silently dropped nor guessed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple, Protocol

from memgate.trace import Trace


class MemoryBlock(NamedTuple):
    """One allocation's lifetime."""

    block_id: int
    size_bytes: int
    alloc_us: float
    #: None: it outlived the trace
    free_us: float | None
    #: that allocated it
    thread: int


class OlderBlock(NamedTuple):
    """What was allocated before the trace began, and freed in it."""

    size_bytes: int
    free_us: float


class BlockProblem(StrEnum):
    """What was odd about the memory events of a trace."""

    #: the file does not list them in time order; they were sorted
    OUT_OF_ORDER = "out_of_order"
    #: of memory that was allocated before the trace began
    FREE_OF_OLDER = "free_of_older"
    #: an address was allocated twice; the first block is taken to end where the second begins
    FREE_NOT_SEEN = "free_not_seen"
    #: a free whose size differs from its allocation's; the allocation is believed
    OTHER_SIZE = "other_size"
    #: nothing was asked for
    NO_BYTES = "no_bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockSet:
    """All blocks, in the order of their allocation; ids are positions."""

    blocks: tuple[MemoryBlock, ...]
    #: how often each problem was found
    diagnostics: Mapping[BlockProblem, int]
    #: in the order of their frees
    older: tuple[OlderBlock, ...] = ()


def pair_blocks(trace: Trace) -> BlockSet:
    """Pair allocations with frees."""
    diagnostics: Counter[BlockProblem] = Counter()
    events = trace.memory_events
    if any(later.at_us < earlier.at_us for earlier, later in pairwise(events)):
        diagnostics[BlockProblem.OUT_OF_ORDER] += 1
        events = tuple(sorted(events, key=lambda event: event.at_us))
    blocks: list[MemoryBlock] = []
    older: list[OlderBlock] = []
    live: dict[int, int] = {}
    for event in events:
        if event.size_bytes == 0:
            diagnostics[BlockProblem.NO_BYTES] += 1
            continue
        known = live.pop(event.address, None)
        if event.size_bytes > 0:
            if known is not None:
                diagnostics[BlockProblem.FREE_NOT_SEEN] += 1
                blocks[known] = end_block(blocks[known], event.at_us)
            live[event.address] = len(blocks)
            blocks.append(
                MemoryBlock(len(blocks), event.size_bytes, event.at_us, None, event.thread)
            )
        elif known is None:
            diagnostics[BlockProblem.FREE_OF_OLDER] += 1
            older.append(OlderBlock(-event.size_bytes, event.at_us))
        else:
            if -event.size_bytes != blocks[known].size_bytes:
                diagnostics[BlockProblem.OTHER_SIZE] += 1
            blocks[known] = end_block(blocks[known], event.at_us)
    return BlockSet(blocks=tuple(blocks), diagnostics=dict(diagnostics), older=tuple(older))


def end_block(block: MemoryBlock, free_us: float | None) -> MemoryBlock:
    """Return a block that ends then; ``_replace`` takes four times as long."""
    block_id, size_bytes, alloc_us, _, thread = block
    return MemoryBlock(block_id, size_bytes, alloc_us, free_us, thread)


class _Lifetime(Protocol):
    @property
    def size_bytes(self) -> int: ...
    @property
    def alloc_us(self) -> float: ...
    @property
    def free_us(self) -> float | None: ...


def find_live_sizes(blocks: Iterable[_Lifetime], moments_us: Sequence[float]) -> list[list[int]]:
    """Return for each moment the sizes of the blocks that are there, in the blocks' order."""
    order = sorted(range(len(moments_us)), key=moments_us.__getitem__)
    moments = [moments_us[at] for at in order]
    found: list[list[int]] = [[] for _ in moments]
    for block in blocks:
        first = bisect_right(moments, block.alloc_us)
        end = len(moments) if block.free_us is None else bisect_left(moments, block.free_us)
        for at in order[first:end]:
            found[at].append(block.size_bytes)
    return found
