"""Blocks to calls, layers and phases."""

from __future__ import annotations

from collections import Counter

import pytest

from memgate.blocks import pair_blocks
from memgate.links import LinkedSet, LinkProblem, link_blocks
from memgate.timeline import Phase
from memgate.trace import Annotation, MemoryEvent, ModuleCall, OpEvent, Trace
from tests.builders import TINY_TRACES, read_tiny_trace

NODE = "autograd::engine::evaluate_function: "


def _op(
    begin: float,
    end: float,
    name: str,
    *,
    number: int | None = None,
    forward_thread: int | None = None,
    thread: int = 1,
) -> OpEvent:
    return OpEvent(begin, end, thread, name, number, forward_thread, (), ())


#: one iteration: copy of a batch, a model with one layer, loss, backward, step
OPS = (
    _op(0, 5, "aten::to"),
    _op(1, 4, "aten::copy_"),
    _op(11, 19, "aten::linear", number=7),
    _op(12, 18, "aten::addmm", number=8),
    _op(22, 28, "aten::cross_entropy_loss", number=9),
    _op(30, 39, NODE + "AddmmBackward0", number=8, forward_thread=1),
    _op(31, 38, "AddmmBackward0", number=8, forward_thread=1),
    _op(32, 37, "aten::mm"),
    _op(33, 36, "aten::inner", number=8),  # of the backward pass itself, when it builds a graph
    _op(40, 44, NODE + "torch::autograd::AccumulateGrad"),
    _op(41, 43, "aten::detach"),
    _op(51, 55, "aten::_foreach_add_"),
    _op(70, 71, "aten::zeros"),
)
MODULES = (ModuleCall(10, 20, 1, "Net_0"), ModuleCall(10.5, 19.5, 1, "Linear_0"))
STEP = Annotation(50, 60, "Optimizer.step#SGD.step")


def _link(
    *memory: tuple[float, int, int],
    ops: tuple[OpEvent, ...] = OPS,
    modules: tuple[ModuleCall, ...] = MODULES,
) -> LinkedSet:
    trace = Trace(
        memory_events=tuple(MemoryEvent(at, 1, address, size) for at, address, size in memory),
        ops=ops,
        module_calls=modules,
        annotations=(STEP, Annotation(48, 49, "ProfilerStep#1")),
        notes={},
    )
    return link_blocks(pair_blocks(trace), trace)


def test_calls_are_the_outermost_operators() -> None:
    """What they call themselves, and what autograd wraps around them, is not counted."""
    calls = _link().calls

    assert [(call.op.name, call.phase, call.iteration) for call in calls] == [
        ("aten::to", Phase.BETWEEN, 0),
        ("aten::linear", Phase.FORWARD, 0),
        ("aten::cross_entropy_loss", Phase.FORWARD, 0),
        ("aten::mm", Phase.BACKWARD, 0),
        ("aten::detach", Phase.BACKWARD, 0),
        ("aten::_foreach_add_", Phase.OPTIMIZER, 0),
        ("aten::zeros", Phase.BETWEEN, 1),
    ]


def test_layers_are_the_modules_that_were_running() -> None:
    """The backward pass belongs to the layer of its forward pass."""
    calls = _link().calls

    assert [call.layer for call in calls] == [
        "",
        "Net_0.Linear_0",
        "",
        "Net_0.Linear_0",
        "",
        "",
        "",
    ]
    assert (calls[3].node, calls[3].forward_call) == ("AddmmBackward0", 1)
    assert calls[4].node == "torch::autograd::AccumulateGrad"


def test_a_module_that_is_over_is_no_layer() -> None:
    """Whether an operator ran in it or none did, and whether or not its caller is over, too."""
    modules = (
        ModuleCall(10, 26, 1, "Net_0"),
        ModuleCall(10.2, 10.4, 1, "Identity_0"),
        ModuleCall(10.5, 19.5, 1, "Linear_0"),
    )

    layers = [call.layer for call in _link(modules=modules).calls]

    assert layers[:3] == ["", "Net_0.Linear_0", "Net_0"]
    assert layers[-1] == ""


def test_a_backward_call_without_a_forward_call_is_counted() -> None:
    """Gradients of parameters have none by nature; anything else should."""
    ops = (*OPS, _op(45, 47, NODE + "X", number=99, forward_thread=1), _op(45.5, 46, "aten::x"))

    assert _link().diagnostics[LinkProblem.NO_FORWARD] == 0
    assert _link(ops=ops).diagnostics[LinkProblem.NO_FORWARD] == 1
    assert _link(ops=ops).shares[LinkProblem.NO_FORWARD] == 1 / 2


def test_blocks_belong_to_the_call_that_was_running() -> None:
    """Internal if they are gone before it is over; of another thread or time: nobody's."""
    linked = _link((12, 64, 8), (13, 128, 16), (17, 128, -16), (21, 256, 4), (35, 512, 4))

    assert [(block.call, block.is_internal) for block in linked.blocks] == [
        (1, False),
        (1, True),
        (None, False),
        (3, False),
    ]
    assert linked.diagnostics[LinkProblem.NO_OPERATOR] == 1
    assert linked.shares[LinkProblem.NO_OPERATOR] == 4 / 32


def test_a_thread_without_modules_has_no_layers() -> None:
    """Its blocks are told from those of others."""
    other = _op(12, 13, "aten::empty", thread=2)

    calls = _link(ops=(*OPS, other)).calls

    assert next(call.layer for call in calls if call.op.thread == 2) == ""


@pytest.mark.parametrize("name", TINY_TRACES)
def test_a_real_trace_is_linked_whole(name: str) -> None:
    """Two iterations with all phases; every call of the backward pass has its layer."""
    trace = read_tiny_trace(name)

    linked = link_blocks(pair_blocks(trace), trace)

    assert linked.diagnostics[LinkProblem.NO_FORWARD] == 0
    phases = Counter((call.phase, call.iteration) for call in linked.calls)
    assert {phase for phase, iteration in phases if iteration == 1} >= set(Phase)
    layers = {call.layer for call in linked.calls if call.phase is Phase.BACKWARD}
    assert layers >= {"Tiny_0.Embedding_0", "Tiny_0.LayerNorm_0", "Tiny_0.Linear_1", "Tiny_0"}
