"""What cuDNN's workspaces may change of the memory that a job needs, where they are not known.

cuDNN lends itself memory for a convolution: mostly nothing, often a copy of the operands in another
layout. Which it is depends on its version and the GPU, and where it cannot be asked, nobody knows.
A workspace is never what kills a job: without memory for one, PyTorch takes the next plan. But one
that is granted leaves a segment in which something else comes to lie, and a request that fails
gives the cache back. So the same job is replayed with such copies, and the range is part of what
is said: the most of its bound, the least of what it may live in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from memgate.allocator.config import AllocatorConfig
from memgate.capacity import MemoryNeeds
from memgate.timeline import Alloc, Free, Timeline, TimelineEvent


class WorkspaceRange(NamedTuple):
    """How much less, and how much more memory for segments a job may need with workspaces."""

    less_bytes: int = 0
    more_bytes: int = 0


#: they are known, or there are none
NO_WORKSPACES = WorkspaceRange()


class PossibleWorkspace(NamedTuple):
    """What cuDNN may have wanted for a convolution, where it cannot be asked."""

    #: how many events there were before
    event_index: int
    #: a copy of all operands
    size_bytes: int
    is_forward: bool


def find_workspace_range(
    timeline: Timeline, config: AllocatorConfig, possible: Sequence[PossibleWorkspace]
) -> WorkspaceRange:
    """Replay a job with every workspace, and with those of one direction only."""
    if not possible:
        return NO_WORKSPACES
    without = MemoryNeeds(timeline, config).required.size_bytes
    chosen = (
        possible,
        [one for one in possible if one.is_forward],
        [one for one in possible if not one.is_forward],
    )
    needed = [
        MemoryNeeds(add_workspaces(timeline, some), config).required.size_bytes
        for some in chosen
        if some
    ]
    return WorkspaceRange(max(0, without - min(needed)), max(0, max(needed) - without))


def add_workspaces(timeline: Timeline, possible: Iterable[PossibleWorkspace]) -> Timeline:
    """Return a job that was lent these workspaces, each just for its convolution."""
    events = timeline.events
    first_id = 1 + max((one.block_id for one in events if isinstance(one, Alloc)), default=-1)
    added = list(enumerate(possible, start=first_id))
    return Timeline(
        events=tuple(_merge(events, added)),
        dispensable=timeline.dispensable | {block_id for block_id, _ in added},
        residents=timeline.residents,
        private_streams=timeline.private_streams,
    )


def _merge(
    events: Sequence[TimelineEvent], added: Iterable[tuple[int, PossibleWorkspace]]
) -> Iterator[TimelineEvent]:
    done = 0
    for block_id, one in added:
        yield from events[done : one.event_index]
        done = max(done, one.event_index)
        yield Alloc(block_id, one.size_bytes)
        yield Free(block_id)
    yield from events[done:]
