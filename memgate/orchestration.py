"""Stage 4: LinkedSet -> Timeline: what the CPU did, turned into what a GPU would have done.

A job makes the same calls in the same order on both, and frees tensors at the same places: Python
and autograd decide that. So the CPU's blocks are taken in their order, and what is different on a
GPU is a list of small rules, each of which can be left out. They are in ``rules``, each with its
reason.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from memgate.links import LinkedSet
from memgate.plan import PlannedBlock, categorize
from memgate.rules import RULES, DeviceTraits
from memgate.timeline import (
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
    model_bytes: Sequence[int],
    device: DeviceTraits,
    *,
    without: Iterable[str] = (),
) -> Timeline:
    """Make the timeline of a GPU.

    Args:
        linked: blocks of a CPU trace.
        model_bytes: parameters and buffers, in the order in which ``model.to("cuda")`` allocates
            them; a trace cannot show them, since they were allocated before it began.
        device: decides workspaces and kernels.
        without: names of rules that are left out.
    """
    left_out = frozenset(without)
    plan = _first_plan(linked)
    for rule in RULES:
        if rule.__name__ not in left_out:
            plan = rule(linked, plan, device)
    return _to_timeline(linked, plan, model_bytes)


def _first_plan(linked: LinkedSet) -> list[PlannedBlock]:
    """Take the blocks as they are."""
    begins = [call.op.begin_us for call in linked.calls]
    return [
        PlannedBlock(
            block.size_bytes,
            block.alloc_us,
            block.free_us,
            call,
            categorize(linked.calls, call, block.free_us, begins),
            is_internal,
        )
        for block, call, is_internal in linked.blocks
    ]


def _to_timeline(
    linked: LinkedSet, plan: Sequence[PlannedBlock], model_bytes: Sequence[int]
) -> Timeline:
    """Put the events in order: the model first, then by time; at the same time, frees last."""
    events: list[TimelineEvent] = [Alloc(number, size) for number, size in enumerate(model_bytes)]
    labels = [Label(Category.PARAMETERS, "")] * len(model_bytes)
    moments: list[tuple[float, int, TimelineEvent]] = []
    for block in sorted(plan, key=lambda block: block.alloc_us):
        block_id = len(labels)
        layer = "" if block.call is None else linked.calls[block.call].layer
        labels.append(Label(block.category, layer))
        moments.append((block.alloc_us, 0, Alloc(block_id, block.size_bytes)))
        if block.free_us is not None:
            moments.append((block.free_us, 1, Free(block_id)))
    moments.sort(key=lambda moment: moment[:2])
    events.extend(event for _, _, event in moments)
    return Timeline(
        events=tuple(events),
        labels=tuple(labels),
        phases=make_phases(
            _phases(linked, [at_us for at_us, _, _ in moments], len(model_bytes)), len(events)
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
