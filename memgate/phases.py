"""Operators, annotations, modules -> which phase and iteration a moment belongs to.

The backward pass is named by autograd, the step by the optimizer. The forward pass has no name of
its own: it begins where, after those two, the first operator computes with weights or enters the
graph that the backward pass walks, and takes in the module around that operator, if modules were
recorded. It ends with the next backward pass or step, so the loss belongs to it.

What comes before prepares a batch, even if it is a module: transforms of pictures are modules too.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from memgate.spans import Spans
from memgate.timeline import Phase
from memgate.trace import Annotation, ModuleCall, OpEvent, Trace

#: how the profiler names the steps of optimizers
STEP_PREFIX = "Optimizer.step#"

#: compute with weights
_COMPUTING = frozenset(
    f"aten::{name}"
    for name in [
        "addmm",
        "baddbmm",
        "batch_norm",
        "bilinear",
        "bmm",
        "conv1d",
        "conv2d",
        "conv3d",
        "conv_transpose1d",
        "conv_transpose2d",
        "conv_transpose3d",
        "convolution",
        "embedding",
        "embedding_bag",
        "group_norm",
        "gru",
        "instance_norm",
        "layer_norm",
        "linear",
        "lstm",
        "matmul",
        "mm",
        "prelu",
        "rms_norm",
        "rnn_relu",
        "rnn_tanh",
        "scaled_dot_product_attention",
    ]
)

_Span = TypeVar("_Span", OpEvent, ModuleCall)


def find_outermost(spans: Iterable[_Span]) -> Iterator[_Span]:
    """Keep the spans that no other of the same thread contains; they come sorted by beginning."""
    end_us: dict[int, float] = {}
    never = float("-inf")
    for span in spans:
        if span.begin_us >= end_us.get(span.thread, never):
            end_us[span.thread] = span.end_us
            yield span


def find_steps(annotations: Iterable[Annotation]) -> tuple[Annotation, ...]:
    """Return the steps of optimizers; of one that wraps another, only its own."""
    steps: list[Annotation] = []
    for note in sorted(note for note in annotations if note.name.startswith(STEP_PREFIX)):
        if not steps or note.begin_us >= steps[-1].end_us:
            steps.append(note)
    return tuple(steps)


def find_optimizers(annotations: Iterable[Annotation]) -> list[str]:
    """Return the classes of optimizers, step by step: the profiler names them.

    Of one that wraps another, the name of the wrapped one, which is the last to begin.
    """
    notes = sorted(note for note in annotations if note.name.startswith(STEP_PREFIX))
    innermost: list[str] = []
    end_us = float("-inf")
    for note in notes:
        name = note.name.removeprefix(STEP_PREFIX).partition(".")[0]
        if note.begin_us >= end_us:
            innermost.append(name)
            end_us = note.end_us
        else:
            innermost[-1] = name
    return innermost


class PhaseFinder:
    """Which phase and iteration a moment belongs to.

    Known limitation: one process trains one model. Threads other than the main one are taken to do
    what the main one does at that time.
    """

    def __init__(
        self,
        trace: Trace,
        ops: Sequence[OpEvent],
        nodes: Sequence[OpEvent],
        outermost: Sequence[OpEvent],
    ) -> None:
        """Look at a trace.

        Args:
            trace: its annotations and modules are looked at.
            ops: its operators in the order of time.
            nodes: those of them that are nodes of the backward pass.
            outermost: those of ATen that no other contains.
        """
        steps = find_steps(trace.annotations)
        self._steps = Spans(steps)
        self._nodes = Spans(nodes)
        computing = [op.begin_us for op in outermost if op.name in _COMPUTING]
        in_graph = list(_enter_graph(ops, nodes))
        #: when a forward pass was certainly running
        self._marks = sorted(_widen([*computing, *in_graph], trace.module_calls))
        #: the same, if an optimizer is at work: some compute with matrices, some call the model
        self._marks_in_steps = sorted(_widen(in_graph, trace.module_calls))
        #: from here on, what is neither is between: the end of a backward pass, and of a step
        self._ends = sorted([node.end_us for node in nodes] + [step.end_us for step in steps])

    def of(self, op: OpEvent) -> tuple[Phase, int]:
        """Return the phase and the iteration of an operator."""
        iteration = self._steps.num_ended(op.begin_us)
        if self._nodes.contains(op.begin_us):
            return Phase.BACKWARD, iteration
        is_step = self._steps.num_begun(op.begin_us) > iteration
        if self._is_forward(op.begin_us, self._marks_in_steps if is_step else self._marks):
            return Phase.FORWARD, iteration
        return Phase.OPTIMIZER if is_step else Phase.BETWEEN, iteration

    def _is_forward(self, at_us: float, marks: Sequence[float]) -> bool:
        """Tell whether a forward pass began since the last backward pass or step."""
        return _last_before(marks, at_us) > _last_before(self._ends, at_us)


def _last_before(moments: Sequence[float], at_us: float) -> float:
    at = bisect_right(moments, at_us) - 1
    return moments[at] if at >= 0 else float("-inf")


def _enter_graph(ops: Iterable[OpEvent], nodes: Iterable[OpEvent]) -> Iterator[float]:
    """Yield when each operator began whose node the backward pass visits.

    Operators that make no node carry the number of the next one that will, so the last with a
    number made the node.
    """
    numbers = {node.sequence_number for node in nodes if node.sequence_number is not None}
    last: dict[int, float] = {}
    for op in ops:
        number = op.sequence_number
        if number not in numbers or number is None:
            continue
        if op.forward_thread is None:
            last[number] = op.begin_us
        elif (begin_us := last.pop(number, None)) is not None:
            yield begin_us


def _widen(marks: Iterable[float], module_calls: Iterable[ModuleCall]) -> Iterator[float]:
    """Move each mark to the beginning of the outermost module that was running then."""
    modules = Spans(list(find_outermost(sorted(module_calls))))
    for mark in marks:
        yield modules.last_begin(mark) if modules.contains(mark) else mark
