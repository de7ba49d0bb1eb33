"""What workspaces that are not known may change of what a job needs."""

from __future__ import annotations

from memgate.allocator.config import AllocatorConfig
from memgate.capacity import MemoryNeeds
from memgate.timeline import Alloc, Free, Timeline
from memgate.units import MIB
from memgate.workspaces import (
    NO_WORKSPACES,
    PossibleWorkspace,
    add_workspaces,
    find_workspace_range,
)

#: what is allocated after the workspace stays in its segment
_EVENTS = (Alloc(0, 100 * MIB), Alloc(1, 60 * MIB), Alloc(2, 80 * MIB), Free(1), Free(0), Free(2))


def test_without_convolutions_nothing_is_uncertain() -> None:
    """No replay is made."""
    found = find_workspace_range(Timeline(events=_EVENTS), AllocatorConfig(), ())
    assert found == NO_WORKSPACES


def test_a_workspace_is_lent_just_for_its_convolution() -> None:
    """And the job can do without it."""
    lent = add_workspaces(Timeline(events=_EVENTS), [PossibleWorkspace(1, 90 * MIB, True)])
    assert lent.events[:3] == (_EVENTS[0], Alloc(3, 90 * MIB), Free(3))
    assert lent.events[3:] == _EVENTS[1:]
    assert lent.dispensable == {3}


def test_a_granted_workspace_leaves_its_segment_in_use() -> None:
    """A block of 60 MiB keeps 90 MiB from being given back, and 80 MiB find no place."""
    timeline = Timeline(events=_EVENTS)
    possible = [PossibleWorkspace(1, 90 * MIB, True)]
    least = MemoryNeeds(timeline, AllocatorConfig()).least_bytes()
    found = find_workspace_range(timeline, AllocatorConfig(), possible)
    lent = add_workspaces(timeline, possible)
    assert found.more_bytes == MemoryNeeds(lent, AllocatorConfig()).least_bytes() - least > 0
    assert found.less_bytes == 0
