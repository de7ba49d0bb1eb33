"""Trace -> whether it shows a whole step of training; what it does not show, no peak includes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from memgate.blocks import MemoryBlock
from memgate.links import BACKWARD_PREFIX
from memgate.phases import find_steps
from memgate.report import Reason
from memgate.trace import Annotation, Trace
from memgate.units import format_size

#: of the peak: state that an optimizer makes in the last step of a trace, and that counts
_MIN_SHARE = 0.01


#: of a trace that shows a forward pass and nothing else
INFERENCE_ONLY = "INFERENCE_ONLY"


def settle_inference(
    doubts: Sequence[Reason], notes: Sequence[Reason], *, is_asked: bool
) -> tuple[tuple[Reason, ...], tuple[Reason, ...]]:
    """Decide what a trace without a backward pass is worth; return doubts and notes.

    Unless the caller asks about inference, the question is about training, which the trace does not
    show. A trace with a backward pass shows training, whatever the caller says.
    """
    if not is_asked or all(doubt.code != INFERENCE_ONLY for doubt in doubts):
        return tuple(doubts), tuple(notes)
    note = Reason(
        code=INFERENCE_ONLY,
        message="the trace has no backward pass: the figures are those of inference, as asked",
    )
    others = tuple(doubt for doubt in doubts if doubt.code != INFERENCE_ONLY)
    return others, (*notes, note)


def doubt_steps(trace: Trace, blocks: Iterable[MemoryBlock], peak_bytes: int) -> Iterator[Reason]:
    """Return why a trace may show less than the job takes; nothing if it has a whole step.

    ``blocks`` are those of the device, ``peak_bytes`` what it had allocated at most.
    """
    backward = [op.begin_us for op in trace.ops if op.name.startswith(BACKWARD_PREFIX)]
    steps = find_steps(trace.annotations)
    if not trace.ops:  # nobody can tell
        return
    if not backward and not steps:
        yield Reason(
            code=INFERENCE_ONLY,
            message="the trace has no backward pass: gradients, optimizer state and what the"
            " forward pass keeps for them are not in it; profile whole training steps, or ask about"
            " inference",
        )
    elif not steps:
        yield Reason(
            code="NO_OPTIMIZER_STEP",
            message="the trace has no optimizer step: what the optimizer keeps may not be in it;"
            " profile whole training steps",
        )
    elif not _is_whole(trace, backward, steps[-1]):
        yield Reason(
            code="PART_OF_A_STEP",
            message="the trace has no forward pass, backward pass and optimizer step in this order:"
            " the peak may not be in it; profile whole training steps",
        )
    elif late_bytes := _late_state(blocks, backward, steps[-1], _MIN_SHARE * peak_bytes):
        yield Reason(
            code="PART_OF_A_STEP",
            message=f"the optimizer makes {format_size(late_bytes)} of state at the end of the"
            " trace, and the next iteration needs that, too; profile two training steps or more",
        )


def _is_whole(trace: Trace, backward: list[float], last_step: Annotation) -> bool:
    """Tell whether there is a forward pass, then a backward pass, then a step."""
    forward = (
        op.begin_us
        for op in trace.ops
        if op.sequence_number is not None
        and op.forward_thread is None
        and not op.name.startswith(BACKWARD_PREFIX)
    )
    begin_us = min(forward, default=float("inf"))
    return any(begin_us < at_us < last_step.begin_us for at_us in backward)


def _late_state(
    blocks: Iterable[MemoryBlock], backward: list[float], last: Annotation, least: float
) -> int:
    """Return the bytes that the last step leaves behind, if no backward pass follows it."""
    if max(backward) > last.end_us:
        return 0
    made = sum(
        block.size_bytes
        for block in blocks
        if block.free_us is None and last.begin_us <= block.alloc_us <= last.end_us
    )
    return made if made > least else 0
