"""Blocks of a run, marks of its observer -> a label for each block, and where phases begin.

A tensor that was observed is what it was observed as: parameter, gradient, optimizer state. For the
rest the phase decides: what was put on the device before a forward pass and used in it is batch;
what the forward pass allocated and left behind is kept for the backward pass; what cuDNN was lent,
or was never freed, is a library's workspace; everything else is temporary.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from memgate.timeline import Category, Label, Phase, PhaseStart, make_phases
from memgate_worker.engines.phantom.tracker import Allocation
from memgate_worker.hook.memgate_hook.marks import LayerMark, PhaseMark, TensorMark


def label_blocks(
    blocks: Sequence[Allocation],
    *,
    phases: Sequence[PhaseMark],
    layers: Sequence[LayerMark],
    tensors: Sequence[TensorMark],
    workspaces: frozenset[int] = frozenset(),
    buckets: Sequence[tuple[int, int]] = (),
) -> tuple[Label, ...]:
    """Return a label per block, by id.

    ``workspaces`` are those that cuDNN was lent; between the rows of ``buckets``, DDP allocated
    what it sends gradients in, which are the gradients themselves if they were seen to be.
    """
    seen = blocks_seen_as(blocks, tensors)
    spans = _LayerSpans(layers)
    starts = [mark.position for mark in phases]
    steps = _find_steps(phases)
    labels = []
    for block in blocks:
        if block.block_id in seen:
            labels.append(seen[block.block_id])
            continue
        if block.block_id in workspaces or _is_bucket(block, buckets):
            labels.append(Label(Category.WORKSPACE, spans.innermost(block.begin)))
            continue
        at = bisect_right(starts, block.begin) - 1
        phase_end = starts[at + 1] if at < len(starts) - 1 else None
        is_kept = (not steps or block.begin < steps[0]) and _outlives_steps(block, steps)
        category = _category(block, phases[at].phase, phase_end, is_kept=is_kept)
        labels.append(Label(category, spans.innermost(block.begin)))
    return tuple(labels)


def _is_bucket(block: Allocation, spans: Sequence[tuple[int, int]]) -> bool:
    return any(
        begin <= block.begin < end and (block.end is None or block.end >= end)
        for begin, end in spans
    )


def _find_steps(phases: Sequence[PhaseMark]) -> list[int]:
    """Return where optimizers change weights.

    A step that calls the model itself, as Lightning's do, begins before the forward pass.
    """
    steps = []
    has_gradients = False
    for mark in phases:
        if mark.phase == Phase.OPTIMIZER and has_gradients:
            steps.append(mark.position)
            has_gradients = False
        has_gradients |= mark.phase == Phase.BACKWARD
    return steps


def _outlives_steps(block: Allocation, steps: Sequence[int]) -> bool:
    """Say whether a block is there for good; Lightning frees workspaces when it has trained.

    What a loop's variables hold is freed in the next step at the latest.
    """
    return block.end is None or (len(steps) > _STEPS and block.end > steps[_STEPS])


#: nothing that belongs to the first step lives as long
_STEPS = 2


def _category(block: Allocation, phase: str, phase_end: int | None, *, is_kept: bool) -> Category:
    outlives_its_phase = phase_end is not None and (block.end is None or block.end >= phase_end)
    if phase == Phase.BETWEEN and outlives_its_phase:
        return Category.BATCH
    if is_kept:
        return Category.WORKSPACE
    if phase == Phase.FORWARD and outlives_its_phase:
        return Category.ACTIVATIONS
    return Category.TEMPORARY


def locate_phases(phases: Sequence[PhaseMark], num_before: Sequence[int]) -> tuple[PhaseStart, ...]:
    """Return where phases begin among events; ``num_before`` is that of ``tracker.Events``."""
    starts = (PhaseStart(num_before[mark.position], Phase(mark.phase)) for mark in phases)
    return make_phases(starts, num_before[-1])


def blocks_seen_as(blocks: Sequence[Allocation], tensors: Sequence[TensorMark]) -> dict[int, Label]:
    """Find the block at each mark's address when the mark was made; the first mark counts."""
    at_address: dict[int, list[Allocation]] = {}
    for block in blocks:
        at_address.setdefault(block.address, []).append(block)
    seen: dict[int, Label] = {}
    for mark in tensors:
        candidates = at_address.get(mark.address, [])
        at = bisect_right(candidates, mark.position - 1, key=lambda block: block.begin) - 1
        if at < 0:
            continue
        block = candidates[at]
        if block.end is None or block.end >= mark.position:
            seen.setdefault(block.block_id, Label(Category(mark.category), mark.layer))
    return seen


class _LayerSpans:
    """Which module was running at a position."""

    def __init__(self, marks: Sequence[LayerMark]) -> None:
        self._positions: list[int] = []
        self._layers: list[str] = []
        running: list[str] = []
        for mark in marks:
            if mark.begins:
                running.append(mark.layer)
            elif mark.layer in running:
                while running.pop() != mark.layer:
                    pass  # a module that raised never said that it ended
            self._positions.append(mark.position)
            self._layers.append(running[-1] if running else "")

    def innermost(self, position: int) -> str:
        """Return the innermost module running at a position, or nothing."""
        at = bisect_right(self._positions, position) - 1
        return self._layers[at] if at >= 0 else ""
