"""Two small batch sizes tell any other."""

from __future__ import annotations

import pytest

from memgate.blocks import MemoryBlock
from memgate.errors import ExtrapolationError
from memgate.extrapolation import compare, extrapolate
from memgate.links import Call, LinkedBlock, LinkedSet
from memgate.timeline import Phase
from memgate.trace import OpEvent


def _job(
    batch: int,
    *,
    fixed: int = 10,
    extra: int = 0,
    names: str = "ab",
    free_us: float | None = 9,
) -> LinkedSet:
    """Two calls: one leaves a block for the job and one for each sample, one leaves scratch."""
    calls = tuple(
        Call(
            OpEvent(at, at + 5, 1, name, None, None, ((batch, 3), ()), ()),
            Phase.FORWARD,
            0,
            "",
            "",
            None,
        )
        for at, name in enumerate(names)
    )
    blocks = [
        LinkedBlock(MemoryBlock(0, fixed, 0.1, None, 1), 0, False),
        LinkedBlock(MemoryBlock(1, 8 * batch, 0.2, free_us, 1), 0, False),
        LinkedBlock(MemoryBlock(2, 77 * batch * batch, 1.1, 1.2, 1), 1, True),
        LinkedBlock(MemoryBlock(3, 1, 8, 9, 1), None, False),
    ]
    blocks += [LinkedBlock(MemoryBlock(4 + n, 5, 2, 9, 1), 1, False) for n in range(extra)]
    return LinkedSet(calls=calls, blocks=tuple(blocks), diagnostics={})


def test_a_block_is_so_much_and_so_much_for_each_sample() -> None:
    """Shapes too; what is internal is left out."""
    found = extrapolate(_job(3), _job(5), (3, 5), 700)

    assert [linked.block.size_bytes for linked in found.blocks] == [10, 5600]
    assert found.calls[0].op.input_dims == ((700, 3), ())
    assert compare(found, _job(700)).num_differences == 0


@pytest.mark.parametrize(
    ("other", "want_differences"),
    [
        (_job(3, fixed=11), (0, 1, 0)),
        (_job(3, extra=2), (0, 2, 0)),
        (_job(3, names="abc"), (1, 0, 1)),  # and it is over when the block is freed
        (_job(3, names="ac"), (1, 0, 0)),
        (_job(3, free_us=3), (0, 0, 1)),
        (_job(3, free_us=None), (0, 0, 1)),
        (_job(3, free_us=9.5), (0, 0, 0)),
    ],
    ids=[
        *("another size", "more blocks", "one call more", "another call"),
        *("freed at another call", "never freed", "freed at another time"),
    ],
)
def test_differences_are_counted_by_kind(
    other: LinkedSet, want_differences: tuple[int, int, int]
) -> None:
    """Calls, sizes and the places of frees; clocks do not matter."""
    found = compare(_job(3), other)

    assert (found.num_calls, found.num_blocks) == (2, 2)
    assert (found.other_calls, found.other_sizes, found.other_lifetimes) == want_differences


@pytest.mark.parametrize(
    ("other", "want_message"),
    [
        (_job(5, names="abc"), "2 calls at batch size 3, 3 at 5: what the job does depends"),
        (_job(5, names="ac"), "a call of b was one of c before"),
        (_job(5, extra=1), "a call left 0 blocks at batch size 3, 1 at 5"),
    ],
)
def test_runs_that_do_not_match_give_no_answer(other: LinkedSet, want_message: str) -> None:
    """The job must be run at its own size then."""
    with pytest.raises(ExtrapolationError) as raised:
        extrapolate(_job(3), other, (3, 5), 700)

    assert want_message in raised.value.message


def test_a_call_that_leaves_less_is_named() -> None:
    """As far as it has a name."""
    with pytest.raises(ExtrapolationError, match="b left 1 blocks at batch size 3, 0 at 5"):
        extrapolate(_job(3, extra=1), _job(5), (3, 5), 700)
