"""Trace, LinkedSet -> what the job had put on the device before the trace began: its model.

``memgate profile`` writes it into the traces it makes. In other people's traces it is inferred:
each parameter has a gradient, made in the reverse of the order in which parameters are loaded (as
the VeritasEst paper does), and batch norm shows its statistics.

Known limitation: parameters that are not trained leave no mark in other people's traces.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import msgspec

from memgate.errors import TraceFormatError
from memgate.links import LinkedSet
from memgate.timeline import Phase
from memgate.trace import OpEvent, Trace

#: the name of the sizes in a trace's notes
MODEL_NOTE = "model_bytes"

_ITEM_BYTES = {
    "double": 8,
    "float": 4,
    "c10::Half": 2,
    "c10::BFloat16": 2,
    "long int": 8,
    "int": 4,
    "short int": 2,
    "signed char": 1,
    "unsigned char": 1,
    "bool": 1,
}
_ACCUMULATE = "torch::autograd::AccumulateGrad"
#: of batch norm: which inputs are its statistics, and what it counts batches with
_STATISTICS = (3, 4)
_COUNTER_BYTES = 8


def find_model_bytes(trace: Trace, linked: LinkedSet) -> tuple[int, ...]:
    """Return the sizes of parameters and buffers, in the order in which they are loaded.

    Raises:
        TraceFormatError: if the trace's own notes are broken.
    """
    if MODEL_NOTE in trace.notes:
        return _noted(trace.notes[MODEL_NOTE])
    end_us = _end_of_first_backward(linked)
    made = [
        op for op in trace.ops if op.name == _ACCUMULATE and op.begin_us < end_us and op.input_dims
    ]
    made.sort(key=lambda op: op.begin_us)
    return (*(input_bytes(op, 0) for op in reversed(made)), *_buffers(linked))


def _noted(note: Any) -> tuple[int, ...]:
    try:
        return msgspec.convert(note, tuple[int, ...])
    except msgspec.ValidationError as error:
        raise TraceFormatError(f"the trace's note {MODEL_NOTE!r} is broken: {error}") from None


def _end_of_first_backward(linked: LinkedSet) -> float:
    """Return when the first backward pass ended: a parameter has one gradient in it."""
    seen = False
    for call in linked.calls:
        if call.phase is Phase.BACKWARD:
            seen = True
        elif seen:
            return call.op.begin_us
    return float("inf")


def _buffers(linked: LinkedSet) -> Iterator[int]:
    for call in linked.calls:
        if call.iteration == 0 and call.op.name == "aten::batch_norm":
            yield from (input_bytes(call.op, at) for at in _STATISTICS)
            yield _COUNTER_BYTES


def input_bytes(op: OpEvent, at: int) -> int:
    """Return the size of an operator's input; 0 if the trace does not say."""
    if at >= len(op.input_dims) or at >= len(op.input_types):
        return 0
    return prod(op.input_dims[at]) * _ITEM_BYTES.get(op.input_types[at], 0)
