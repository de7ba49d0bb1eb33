"""Stage 3: BlockSet, Trace -> LinkedSet: which operator, layer and phase each block belongs to.

The unit is the *call*: an ATen operator that no other ATen operator contains. What a call does
internally differs between a CPU and a GPU; what it leaves behind, and the order of calls, do not.
Time alone ties the events of a trace together, thread by thread, except that a sequence number
leads from the backward pass to the forward pass.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from memgate.blocks import BlockProblem, BlockSet, MemoryBlock, OlderBlock
from memgate.phases import PhaseFinder, find_optimizers, find_outermost, find_steps
from memgate.timeline import Category, Phase
from memgate.trace import Annotation, ModuleCall, OpEvent, Trace

BACKWARD_PREFIX = "autograd::engine::evaluate_function: "
_ZERO_GRAD_PREFIX = "Optimizer.zero_grad#"
ACCUMULATE = "torch::autograd::AccumulateGrad"  # belongs to a parameter, not to a call


class Call(NamedTuple):
    """An outermost operator."""

    op: OpEvent
    phase: Phase
    #: counted by optimizer steps
    iteration: int
    #: modules from the outside in, such as ``ResNet_0.Sequential_1.Conv2d_3``; empty outside any
    layer: str
    #: of the backward pass: the autograd node that called it, such as ``MulBackward0``
    node: str
    #: ties a call of the backward pass to the call of the forward pass that it belongs to
    forward_call: int | None


class LinkedBlock(NamedTuple):
    """A block and the call that allocated it."""

    block: MemoryBlock
    #: position among the calls; None: allocated outside any call
    call: int | None
    #: freed before the call ended
    is_internal: bool


class LinkProblem(StrEnum):
    """What could not be tied together."""

    #: a call of the backward pass without one of the forward pass
    NO_FORWARD = "no_forward"
    #: a block that no operator allocated
    NO_OPERATOR = "no_operator"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkedSet:
    """Calls in time order, blocks in the order of their allocation."""

    calls: tuple[Call, ...]
    blocks: tuple[LinkedBlock, ...]
    diagnostics: Mapping[BlockProblem | LinkProblem, int]
    #: its class, such as ``AdamW``; empty if the trace does not say
    optimizer: str = ""
    #: of all optimizers, in the order of time
    steps: tuple[Annotation, ...] = ()
    #: when gradients were given back, or set to zero
    zero_grads: tuple[Annotation, ...] = ()
    #: what was freed, but not allocated
    older: tuple[OlderBlock, ...] = ()
    #: sizes of what is trained, in the order in which it is loaded; empty if not known
    trained: tuple[int, ...] = ()
    #: of what is stepped, if it is not what is trained
    stepped: tuple[int, ...] = ()
    #: blocks that are known for what they are, by id
    known: Mapping[int, Category] = field(default_factory=dict)
    #: how much of what a problem could affect it did affect: see ``_shares``
    shares: Mapping[BlockProblem | LinkProblem, float] = field(default_factory=dict)


def link_blocks(blocks: BlockSet, trace: Trace) -> LinkedSet:
    """Tie blocks to calls, and calls to layers and phases."""
    diagnostics: Counter[BlockProblem | LinkProblem] = Counter(blocks.diagnostics)
    ops = sorted(trace.ops, key=lambda op: (op.begin_us, -op.end_us))
    nodes = [op for op in ops if op.name.startswith(BACKWARD_PREFIX)]
    outermost = list(find_outermost(op for op in ops if op.name.startswith("aten::")))
    phases = PhaseFinder(trace, ops, nodes, outermost)
    layers = _layers(outermost, trace.module_calls)
    calls = [
        Call(op, *phases.of(op), layer, "", None)
        for op, layer in zip(outermost, layers, strict=True)
    ]
    calls = list(_tie_backward_calls(calls, ops, nodes, diagnostics))
    linked = tuple(_link(blocks.blocks, calls))
    diagnostics[LinkProblem.NO_OPERATOR] += sum(block.call is None for block in linked)
    return LinkedSet(
        calls=tuple(calls),
        blocks=linked,
        diagnostics=dict(diagnostics),
        optimizer=next(iter(find_optimizers(trace.annotations)), ""),
        steps=_without_cut_off(find_steps(trace.annotations), calls),
        zero_grads=tuple(sorted(_zero_grads(trace.annotations))),
        older=blocks.older,
        shares=_shares(calls, linked, diagnostics),
    )


def _without_cut_off(
    steps: tuple[Annotation, ...], calls: Sequence[Call]
) -> tuple[Annotation, ...]:
    """Leave out a step that only begins at the end of the trace."""
    is_cut_off = steps and calls and calls[-1].op.begin_us < steps[-1].begin_us
    return steps[:-1] if is_cut_off else steps


def _zero_grads(annotations: Iterable[Annotation]) -> Iterator[Annotation]:
    return (note for note in annotations if note.name.startswith(_ZERO_GRAD_PREFIX))


def _shares(
    calls: Sequence[Call],
    blocks: Sequence[LinkedBlock],
    diagnostics: Mapping[BlockProblem | LinkProblem, int],
) -> dict[BlockProblem | LinkProblem, float]:
    """Return how much each problem that changes the answer has affected.

    Of calls of the backward pass those without a forward call; of bytes those that no operator
    asked for, since they are left out; of blocks those whose end or size is a guess.
    """
    tied = sum(call.phase is Phase.BACKWARD and call.forward_call is not None for call in calls)
    untied = diagnostics.get(LinkProblem.NO_FORWARD, 0)
    num_bytes = sum(linked.block.size_bytes for linked in blocks)
    nobodys = sum(linked.block.size_bytes for linked in blocks if linked.call is None)
    return {
        LinkProblem.NO_FORWARD: untied / max(1, tied + untied),
        LinkProblem.NO_OPERATOR: nobodys / max(1, num_bytes),
        **{
            problem: diagnostics.get(problem, 0) / max(1, len(blocks))
            for problem in (BlockProblem.FREE_NOT_SEEN, BlockProblem.OTHER_SIZE)
        },
    }


def _layers(ops: Sequence[OpEvent], module_calls: Sequence[ModuleCall]) -> Iterator[str]:
    """Return the path of modules that were running when each operator began."""
    waiting: dict[int, list[ModuleCall]] = {}
    for call in sorted(module_calls, key=lambda call: (-call.begin_us, call.end_us)):
        waiting.setdefault(call.thread, []).append(call)
    running = {thread: _Running(queue) for thread, queue in waiting.items()}
    for op in ops:
        yield running[op.thread].path_at(op.begin_us) if op.thread in running else ""


class _Running:
    """The modules that are running in a thread, looked up by moments in time order."""

    def __init__(self, waiting: list[ModuleCall]) -> None:
        #: not begun yet, the next one last
        self._waiting = waiting
        self._stack: list[ModuleCall] = []
        #: when the first module on the stack ends; until then there is nothing to check
        self._first_end_us = float("inf")
        self._path = ""

    def path_at(self, at_us: float) -> str:
        """Return their names from the outside in."""
        is_changed = self._drop_ended(at_us)
        while self._waiting and self._waiting[-1].begin_us <= at_us:
            call = self._waiting.pop()
            if call.end_us > at_us:
                self._stack.append(call)
                self._first_end_us = min(self._first_end_us, call.end_us)
                is_changed = True
        if is_changed:
            self._path = ".".join(call.name for call in self._stack)
        return self._path

    def _drop_ended(self, at_us: float) -> bool:
        if at_us < self._first_end_us:
            return False
        self._stack = [call for call in self._stack if call.end_us > at_us]
        self._first_end_us = min((call.end_us for call in self._stack), default=float("inf"))
        return True


def _tie_backward_calls(
    calls: Sequence[Call],
    ops: Sequence[OpEvent],
    nodes: Sequence[OpEvent],
    diagnostics: Counter[BlockProblem | LinkProblem],
) -> Iterator[Call]:
    """Give calls of the backward pass the node that made them, and the layer of the forward pass.

    Sequence numbers are counted by thread, and the trace does not say which forward thread is which
    of the system's: the latest earlier operator with that number is taken.
    """
    begins = [call.op.begin_us for call in calls]
    node_begins = [node.begin_us for node in nodes]
    forward_of: dict[int, int] = {}
    numbered = iter(
        [op for op in ops if op.sequence_number is not None and op.forward_thread is None]
    )
    upcoming = next(numbered, None)
    for call in calls:
        while upcoming is not None and upcoming.begin_us <= call.op.end_us:
            at = bisect_right(begins, upcoming.begin_us) - 1
            if at >= 0 and calls[at].phase is not Phase.BACKWARD:
                assert upcoming.sequence_number is not None
                forward_of[upcoming.sequence_number] = at
            upcoming = next(numbered, None)
        if call.phase is not Phase.BACKWARD:
            yield call
            continue
        node = nodes[bisect_right(node_begins, call.op.begin_us) - 1]
        number = node.sequence_number
        forward = forward_of.get(number) if number is not None else None
        name = node.name.removeprefix(BACKWARD_PREFIX)
        if forward is None:
            diagnostics[LinkProblem.NO_FORWARD] += name != ACCUMULATE
            yield Call(call.op, call.phase, call.iteration, call.layer, name, None)
        else:
            layer = calls[forward].layer
            yield Call(call.op, call.phase, call.iteration, layer, name, forward)


def _link(blocks: Iterable[MemoryBlock], calls: Sequence[Call]) -> Iterator[LinkedBlock]:
    """Find the call during which each block was allocated, on the same thread."""
    positions: dict[int, list[int]] = {}
    for position, call in enumerate(calls):
        positions.setdefault(call.op.thread, []).append(position)
    begins = {
        thread: [calls[position].op.begin_us for position in mine]
        for thread, mine in positions.items()
    }
    for block in blocks:
        at = bisect_right(begins.get(block.thread, []), block.alloc_us) - 1
        found = positions[block.thread][at] if at >= 0 else None
        if found is None or block.alloc_us > calls[found].op.end_us:
            yield LinkedBlock(block, None, False)
            continue
        ended = calls[found].op.end_us
        yield LinkedBlock(block, found, block.free_us is not None and block.free_us <= ended)
