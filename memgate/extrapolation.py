"""LinkedSets of one job at two small batch sizes -> the LinkedSet at any batch size.

What a call leaves behind is affine in the batch size: a part for the job, a part for each sample.
What happens inside a call is not (a CPU's kernels choose their scratch as they please), so internal
blocks are left out: the rules drop them anyway. Pairs are made call by call, not by position among
all blocks. Where two runs do not match, there is no answer, and the job must be run at its size.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from memgate.batch_line import BatchLine
from memgate.errors import ExtrapolationError
from memgate.links import Call, LinkedBlock, LinkedSet


def extrapolate(
    first: LinkedSet, second: LinkedSet, batches: tuple[int, int], batch: int
) -> LinkedSet:
    """Return what the job would have left behind at another batch size.

    Times and lifetimes are those of the first run.

    Raises:
        ExtrapolationError: if the two runs did not make the same calls, or a call did not leave as
            many blocks.
    """
    line = BatchLine(batches, batch)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """Two sets of the same job at the same batch size, compared with each other."""

    num_calls: int
    #: retained ones
    num_blocks: int
    #: calls that differ in operator, shapes, layer or phase
    other_calls: int
    #: blocks that calls left in a different size or order
    other_sizes: int
    #: blocks that were freed at a different place
    other_lifetimes: int

    @property
    def num_differences(self) -> int:
        """None of these is harmless."""
        return self.other_calls + self.other_sizes + self.other_lifetimes


def compare(one: LinkedSet, other: LinkedSet) -> RunComparison:
    """Compare calls one by one, and what each left behind block by block."""
    mine, theirs = _by_call(one), _by_call(other)
    other_calls = sum(
        _traits(a) != _traits(b) for a, b in zip(one.calls, other.calls, strict=False)
    )
    other_sizes = other_lifetimes = 0
    places = _Places(one), _Places(other)
    for left, right in zip(mine, theirs, strict=False):
        if len(left) != len(right):
            other_sizes += max(len(left), len(right))
            continue
        for a, b in zip(left, right, strict=True):
            other_sizes += a.block.size_bytes != b.block.size_bytes
            other_lifetimes += places[0].of_free(a) != places[1].of_free(b)
    return RunComparison(
        num_calls=len(one.calls),
        num_blocks=sum(map(len, mine)),
        other_calls=other_calls + abs(len(one.calls) - len(other.calls)),
        other_sizes=other_sizes,
        other_lifetimes=other_lifetimes,
    )


def _traits(call: Call) -> tuple[object, ...]:
    """Return the parts that do not depend on time."""
    return call.op.name, call.op.input_dims, *call[1:]


class _Places:
    """Moments, named by the calls around them: clocks differ from run to run."""

    def __init__(self, linked: LinkedSet) -> None:
        self._begins = [call.op.begin_us for call in linked.calls]
        self._ends = sorted(call.op.end_us for call in linked.calls)

    def of_free(self, linked: LinkedBlock) -> tuple[int, int] | None:
        """Return how many calls had begun and had ended when a block was given back."""
        at_us = linked.block.free_us
        if at_us is None:
            return None
        return bisect_right(self._begins, at_us), bisect_right(self._ends, at_us)


def _call(one: Call, other: Call, line: BatchLine) -> Call:
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


def _block(one: LinkedBlock, other: LinkedBlock, line: BatchLine) -> LinkedBlock:
    size = line.at(one.block.size_bytes, other.block.size_bytes)
    return one._replace(block=one.block._replace(size_bytes=size))
