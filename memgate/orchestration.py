"""Stage 4: LinkedSet -> Timeline: what the CPU did, turned into what a GPU would have done.

A job makes the same calls in the same order on both, and frees tensors at the same places: Python
and autograd decide that. So the CPU's blocks are taken in their order, and what is different on a
GPU is a list of small rules, each of which can be left out. They are in ``rules``, each with its
reason.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from memgate.errors import TraceFormatError
from memgate.links import LinkedSet
from memgate.plan import DeviceTraits, PlannedBlock, categorize
from memgate.residents import Residents
from memgate.rules import RULES
from memgate.timeline import (
    MAX_SIZE_BYTES,
    Alloc,
    Category,
    Free,
    Label,
    Phase,
    PhaseStart,
    Timeline,
    TimelineEvent,
    make_phases,
)


def orchestrate(
    linked: LinkedSet,
    residents: Residents,
    device: DeviceTraits,
    *,
    without: Iterable[str] = (),
) -> Timeline:
    """Make the timeline of a GPU.

    Args:
        linked: blocks of a CPU trace, from the first iteration on.
        residents: what was there before, in the order in which it was made.
        device: decides workspaces and kernels.
        without: names of rules that are left out.
    """
    linked = replace(linked, trained=residents.trained, stepped=residents.stepped.copies)
    left_out = frozenset(without)
    plan = _first_plan(linked)
    for rule in RULES:
        if rule.__name__ not in left_out:
            plan = rule(linked, plan, device)
    return _to_timeline(linked, plan, residents)


def _first_plan(linked: LinkedSet) -> list[PlannedBlock]:
    """Take the blocks as they are."""
    begins = [call.op.begin_us for call in linked.calls]
    return [
        PlannedBlock(
            block.size_bytes,
            block.alloc_us,
            block.free_us,
            call,
            linked.known.get(block.block_id)
            or categorize(linked.calls, call, block.free_us, begins),
            is_internal,
        )
        for block, call, is_internal in linked.blocks
    ]


def _to_timeline(linked: LinkedSet, plan: Sequence[PlannedBlock], residents: Residents) -> Timeline:
    """Put the events in order: residents first, then by time; at the same time, frees last."""
    first = (*residents.model, *residents.kept)
    events: list[TimelineEvent] = [Alloc(number, size) for number, size in enumerate(first)]
    labels = [Label(Category.PARAMETERS, "")] * len(residents.model)
    labels += [Label(Category.OPTIMIZER_STATE, "")] * len(residents.kept)
    moments: list[tuple[float, int, TimelineEvent]] = []
    for block in sorted(plan, key=lambda block: block.alloc_us):
        block_id = len(labels)
        layer = "" if block.call is None else linked.calls[block.call].layer
        labels.append(Label(block.category, layer))
        moments.append((block.alloc_us, 0, Alloc(block_id, block.size_bytes)))
        if block.free_us is not None:
            moments.append((block.free_us, -1 - block_id, Free(block_id)))
    moments.sort(key=lambda moment: (moment[0], moment[1] < 0, moment[1]))
    events.extend(event for _, _, event in moments)
    if sum(event.size_bytes for event in events if isinstance(event, Alloc)) > MAX_SIZE_BYTES:
        raise TraceFormatError("the trace allocates more than any memory could ever hold")
    return Timeline(
        events=tuple(events),
        labels=tuple(labels),
        phases=make_phases(
            _phases(linked, [at_us for at_us, _, _ in moments], len(first)), len(events)
        ),
        diagnostics={problem.value: count for problem, count in linked.diagnostics.items()},
        shares={problem.value: share for problem, share in linked.shares.items()},
    )


def _phases(
    linked: LinkedSet, moments_us: Sequence[float], num_before: int
) -> Iterator[PhaseStart]:
    """Return at which event each phase starts; the model is there before the first."""
    yield PhaseStart(0, Phase.BETWEEN)
    for call in linked.calls:
        yield PhaseStart(num_before + bisect_left(moments_us, call.op.begin_us), call.phase)
