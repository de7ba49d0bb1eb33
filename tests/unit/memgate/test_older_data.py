"""Data that is older than a trace, and is read in parts."""

from __future__ import annotations

import pytest

from memgate.blocks import MemoryBlock
from memgate.links import Call, LinkedBlock, LinkedSet
from memgate.older_data import doubt_older_data
from memgate.residents import Residents
from memgate.timeline import Phase
from memgate.trace import OpEvent, Trace

#: of a call: its name, what it makes, until when
Made = tuple[str, int, float | None]


def _doubts(*made: tuple[int, Phase, Made]) -> list[str]:
    """Make calls of iterations, without shapes, each with a block."""
    calls, blocks = [], []
    for number, (iteration, phase, (name, size, until)) in enumerate(made):
        at = 10.0 * number
        op = OpEvent(at, at + 5, 1, name, None, None, (), ())
        calls.append(Call(op, phase, iteration, "", "", None))
        is_internal = until is not None and until <= at + 5
        block = MemoryBlock(number, size, at + 1, until, 1)
        blocks.append(LinkedBlock(block, number, is_internal))
    blocks.append(LinkedBlock(MemoryBlock(99, 4096, 0, None, 1), None, False))
    trace = Trace(
        memory_events=(),
        ops=(),
        module_calls=(),
        annotations=(),
        notes={},
        missing_flags=("record_shapes=True",),
    )
    linked = LinkedSet(calls=tuple(calls), blocks=tuple(blocks), diagnostics={})
    return [doubt.code for doubt in doubt_older_data(trace, linked, Residents())]


BETWEEN, FORWARD = Phase.BETWEEN, Phase.FORWARD
LAYER: tuple[int, Phase, Made] = (0, FORWARD, ("aten::linear", 100, None))


@pytest.mark.parametrize(
    ("made", "want"),
    [
        ([(0, BETWEEN, ("aten::index", 800, None)), LAYER], ["OLDER_DATA_READ"]),
        (
            [
                (0, BETWEEN, ("aten::randn", 800, None)),
                (0, BETWEEN, ("aten::index", 800, None)),
                LAYER,
            ],
            [],
        ),
        (
            [
                (0, BETWEEN, ("aten::randn", 400, None)),
                (0, BETWEEN, ("aten::index", 800, None)),
                LAYER,
            ],
            ["OLDER_DATA_READ"],
        ),
        ([(0, BETWEEN, ("aten::randn", 800, 3)), LAYER], ["BATCH_UNSEEN"]),
        (
            [
                (0, BETWEEN, ("aten::randn", 800, None)),
                (0, BETWEEN, ("aten::index", 8, None)),
                LAYER,
            ],
            [],
        ),
    ],
)
def test_what_batches_are_taken_from_must_be_in_the_trace(
    made: list[tuple[int, Phase, Made]], want: list[str]
) -> None:
    """As large as the part at least; numbers are no batches."""
    assert _doubts(*made) == want


def test_the_batch_before_is_not_what_the_next_one_is_taken_from() -> None:
    """What was made before the first iteration may be it, even later."""
    first = (0, BETWEEN, ("aten::randn", 800, None))
    other = (1, BETWEEN, ("aten::randn", 900, None))
    step = (1, Phase.OPTIMIZER, ("aten::add_", 9, None))
    taken = (2, BETWEEN, ("aten::index", 850, None))

    assert _doubts(first, LAYER, other, step, taken) == ["OLDER_DATA_READ"]
    assert _doubts((0, BETWEEN, ("aten::randn", 999, None)), LAYER, other, taken) == []


MUL = ("aten::mul", ("float", "float"))


def _read(
    name: str, types: tuple[str, ...], dims: tuple[tuple[int, ...], ...], *others: str
) -> list[str]:
    """Read operands in a forward pass, beside a block of 4 KB that is there and one that was."""
    calls = [
        Call(OpEvent(10, 15, 1, other, None, None, (), ()), Phase.FORWARD, 0, "", "", None)
        for other in others
    ]
    op = OpEvent(20, 25, 1, name, None, None, dims, types)
    calls.append(Call(op, Phase.FORWARD, 0, "", "", None))
    blocks = [
        LinkedBlock(MemoryBlock(0, 4096, 1, None, 1), None, False),
        LinkedBlock(MemoryBlock(1, 1 << 20, 2, 12.0, 1), None, False),
        LinkedBlock(MemoryBlock(2, 1 << 20, 22, 24.0, 1), None, False),
    ]
    trace = Trace(memory_events=(), ops=(), module_calls=(), annotations=(), notes={})
    linked = LinkedSet(calls=tuple(calls), blocks=tuple(blocks), diagnostics={})
    return [doubt.code for doubt in doubt_older_data(trace, linked, Residents(model=(8192,)))]


@pytest.mark.parametrize(
    ("name", "types", "dims", "want"),
    [
        (*MUL, ((512,), (64, 512)), ["OLDER_DATA_READ"]),
        (*MUL, ((512,), (4, 512)), []),
        ("aten::mul", ("float", "long int"), ((4,), (64, 512)), []),
        ("aten::relu", ("float",), ((64, 512),), []),
    ],
    ids=["a table", "a weight or a view", "indices", "one operand"],
)
def test_operands_larger_than_all_that_is_there_are_older(
    name: str, types: tuple[str, ...], dims: tuple[tuple[int, ...], ...], want: list[str]
) -> None:
    """A constant, or a buffer: if it is on the GPU, it takes memory there."""
    assert _read(name, types, dims) == want


def test_what_is_spread_over_more_than_it_has_is_not_measured() -> None:
    """``expand`` makes a tensor look as large as what it is read for."""
    assert _read(*MUL, ((512,), (64, 512)), "aten::expand") == []
