"""What was on the device before a trace began."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from memgate.blocks import pair_blocks
from memgate.errors import TraceFormatError
from memgate.links import Call, LinkedSet, link_blocks
from memgate.residents import find_residents
from memgate.timeline import Phase
from memgate.trace import OpEvent, Trace
from memgate.weights import find_buffers
from tests.builders import TINY_TRACES, read_tiny_trace

#: embedding, layer norm, two linear layers: weights and biases, in the order of the model
TINY_MODEL = (100 * 32, 32, 32, 64 * 32, 64, 100 * 64, 100)


def _find(trace: Trace) -> tuple[int, ...]:
    return find_residents(trace, link_blocks(pair_blocks(trace), trace)).model


@pytest.mark.parametrize("name", TINY_TRACES)
def test_gradients_tell_the_parameters(name: str) -> None:
    """Made in reverse; one for each, though the trace has two iterations."""
    assert _find(read_tiny_trace(name)) == tuple(4 * numel for numel in TINY_MODEL)


def test_a_trace_of_ours_says_it_itself() -> None:
    """Frozen parameters included, which leave no gradient."""
    trace = replace(read_tiny_trace(TINY_TRACES[0]), notes={"model_bytes": [1, 2, 3]})

    assert _find(trace) == (1, 2, 3)


@pytest.mark.parametrize("note", [5, ["x"], [1.5]])
def test_a_broken_note_is_refused(note: Any) -> None:
    """It may come from anywhere."""
    trace = replace(read_tiny_trace(TINY_TRACES[0]), notes={"model_bytes": note})

    with pytest.raises(TraceFormatError, match="the trace's note 'model_bytes' is broken"):
        _find(trace)


def test_batch_norm_shows_its_statistics() -> None:
    """Mean, variance and a counter; of types that are not known, nothing."""
    types = ("float",) * 4 + ("mystery",)
    dims = ((2, 8, 4), (8,), (8,), (8,), (8,))
    norm = OpEvent(0, 5, 1, "aten::batch_norm", None, None, dims, types)
    short = msgspec.structs.replace(norm, begin_us=6, end_us=7, input_dims=dims[:3])
    calls = tuple(Call(op, Phase.FORWARD, 0, "", "", None) for op in (norm, short))
    linked = LinkedSet(calls=calls, blocks=(), diagnostics={})

    assert find_buffers(linked) == (32, 0, 8, 0, 0, 8)


def test_operators_that_differ_in_a_number_alone_are_no_trouble() -> None:
    """A gradient with a sequence number, and its twin without one."""
    twins = tuple(
        OpEvent(0, 5, 1, "torch::autograd::AccumulateGrad", number, None, ((2, 3),), ("float",))
        for number in (7, None)
    )
    linked = LinkedSet(calls=(), blocks=(), diagnostics={})
    trace = Trace(memory_events=(), ops=twins, module_calls=(), annotations=(), notes={})

    assert find_residents(trace, linked).model == (24, 24)
