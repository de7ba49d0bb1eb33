"""LinkedSets of one job at two small batch sizes -> the LinkedSet at any batch size.

What a call leaves behind is affine in the batch size: so much for the job, so much for each sample.
What happens inside a call is not (a CPU's kernels choose their scratch as they please), so internal
blocks are left out: the rules drop them anyway. Pairs are made call by call, not by position among
all blocks. Where two runs do not match, there is no answer, and the job must be run at its size.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from fractions import Fraction

import msgspec

from memgate.errors import ExtrapolationError
from memgate.links import Call, LinkedBlock, LinkedSet


class _Line:
    """The line through what was seen at two batch sizes."""

    def __init__(self, batches: tuple[int, int], batch: int) -> None:
        first, second = batches
        self._share = Fraction(batch - first, second - first)

    def at(self, first: int, second: int) -> int:
        """Return the value at the batch size that is asked for; a part of a byte is a byte."""
        value = first + (second - first) * self._share
        return -(-value.numerator // value.denominator)


def extrapolate(
    first: LinkedSet, second: LinkedSet, batches: tuple[int, int], batch: int
) -> LinkedSet:
    """Return what the job would have left behind at another batch size.

    Times and lifetimes are those of the first run.

    Raises:
        ExtrapolationError: if the two runs did not make the same calls, or a call did not leave as
            many blocks.
    """
    line = _Line(batches, batch)
    if len(first.calls) != len(second.calls):
        raise ExtrapolationError(
            f"{len(first.calls)} calls at batch size {batches[0]}, {len(second.calls)} at"
            f" {batches[1]}: what the job does depends on the batch size"
        )
    calls = tuple(map(_call, first.calls, second.calls, [line] * len(first.calls)))
    blocks: list[LinkedBlock] = []
    for mine, theirs in zip(_by_call(first), _by_call(second), strict=True):
        if len(mine) != len(theirs):
            name = first.calls[mine[0].call or 0].op.name if mine else "a call"
            raise ExtrapolationError(
                f"{name} left {len(mine)} blocks at batch size {batches[0]}, {len(theirs)} at"
                f" {batches[1]}"
            )
        blocks += [_block(one, other, line) for one, other in zip(mine, theirs, strict=True)]
    blocks.sort(key=lambda linked: linked.block.alloc_us)
    return replace(first, calls=calls, blocks=tuple(blocks))


def count_differences(one: LinkedSet, other: LinkedSet) -> int:
    """Return in how many retained blocks two sets of the same job at the same batch size differ."""
    if len(one.calls) != len(other.calls):
        return abs(len(one.calls) - len(other.calls))
    different = 0
    for mine, theirs in zip(_by_call(one), _by_call(other), strict=True):
        sizes = [[linked.block.size_bytes for linked in blocks] for blocks in (mine, theirs)]
        if sizes[0] != sizes[1]:
            different += max(map(len, sizes))
    return different


def _call(one: Call, other: Call, line: _Line) -> Call:
    if one.op.name != other.op.name:
        raise ExtrapolationError(f"a call of {one.op.name} was one of {other.op.name} before")
    dims = tuple(
        tuple(map(line.at, mine, theirs)) if len(mine) == len(theirs) else mine
        for mine, theirs in zip(one.op.input_dims, other.op.input_dims, strict=False)
    )
    return one._replace(op=msgspec.structs.replace(one.op, input_dims=dims))


def _by_call(linked: LinkedSet) -> Sequence[list[LinkedBlock]]:
    """Return the retained blocks of each call."""
    found: list[list[LinkedBlock]] = [[] for _ in linked.calls]
    for block in _retained(linked.blocks):
        assert block.call is not None
        found[block.call].append(block)
    return found


def _retained(blocks: Iterable[LinkedBlock]) -> Iterable[LinkedBlock]:
    return (block for block in blocks if block.call is not None and not block.is_internal)


def _block(one: LinkedBlock, other: LinkedBlock, line: _Line) -> LinkedBlock:
    size = line.at(one.block.size_bytes, other.block.size_bytes)
    return one._replace(block=one.block._replace(size_bytes=size))
