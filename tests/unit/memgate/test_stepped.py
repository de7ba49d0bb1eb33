"""What an optimizer steps, if it is not what is trained."""

from __future__ import annotations

import pytest

from memgate.blocks import MemoryBlock
from memgate.links import Call, LinkedBlock, LinkedSet
from memgate.stepped import Stepped, find_stepped
from memgate.timeline import Phase
from memgate.trace import Annotation, OpEvent, Trace

STEP = Annotation(10, 20, "Optimizer.step#Adam.step")


def _op(at: float, name: str, *dims: tuple[int, ...]) -> OpEvent:
    return OpEvent(at, at + 0.5, 1, name, None, None, dims, ("float",) * len(dims))


def _find(
    *ops: OpEvent, trained: tuple[int, ...], made: tuple[int, ...] = (), num_gradients: int = 0
) -> Stepped:
    calls = tuple(Call(op, Phase.OPTIMIZER, 0, "", "", None) for op in ops)
    blocks = tuple(
        LinkedBlock(MemoryBlock(number, size, 11, 15, 1), 0, False)
        for number, size in enumerate(made)
    )
    gradients = tuple(
        _op(at / 100, "torch::autograd::AccumulateGrad") for at in range(num_gradients)
    )
    trace = Trace(
        memory_events=(), ops=(*gradients, *ops), module_calls=(), annotations=(STEP,), notes={}
    )
    linked = LinkedSet(calls=calls, blocks=blocks, diagnostics={}, steps=(STEP,))
    return find_stepped(trace, linked, trained)


@pytest.mark.parametrize(
    ("trained", "want"),
    [((128, 64), (256, 128)), ((256, 128), ()), ((512, 256, 128), ())],
)
def test_shapes_show_what_a_step_writes_to(trained: tuple[int, ...], want: tuple[int, ...]) -> None:
    """By the operator that is called once for each; numbers, and what is only read, aside."""
    ops = [
        _op(11, "aten::add_", ()),
        _op(12, "aten::mul_", (8, 8)),
        _op(13, "aten::mul_", (8, 8)),
        _op(14, "aten::addcdiv_", (8, 8)),
        _op(15, "aten::mul_", (32,)),
        _op(16, "aten::mul_", (32,)),
        _op(17, "aten::addcdiv_", (32,)),
        _op(18, "aten::sqrt", (100, 100)),
    ]

    assert _find(*ops, trained=trained) == Stepped(copies=want)


@pytest.mark.parametrize(
    ("made", "num_gradients", "want"),
    [
        ((256, 128, 4), 2, False),
        ((512, 256), 2, True),
        ((), 2, False),
        ((), 3, True),
    ],
)
def test_without_shapes_sizes_and_numbers_must_agree(
    made: tuple[int, ...], num_gradients: int, want: bool
) -> None:
    """What a step makes is as large as what it steps; each gradient is one of a weight."""
    found = _find(_op(11, "aten::sqrt"), trained=(256, 128), made=made, num_gradients=num_gradients)

    assert found == Stepped(is_unclear=want)


def test_without_a_step_nothing_is_stepped() -> None:
    """Of inference, say."""
    trace = Trace(memory_events=(), ops=(), module_calls=(), annotations=(), notes={})
    linked = LinkedSet(calls=(), blocks=(), diagnostics={})

    assert find_stepped(trace, linked, ()) == Stepped()
