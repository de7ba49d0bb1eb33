"""LinkedSet, trained weights -> what the optimizer steps, if that is something else.

Who trains in low precision may keep the weights in full precision beside them: the backward pass
makes gradients for the ones, the optimizer steps the others, and its state is as large as those.
The operators of a step show it by their shapes, or by the sizes of what they make for a moment.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from memgate.links import LinkedSet
from memgate.timeline import Phase
from memgate.trace import Trace
from memgate.weights import SCALAR_BYTES, find_passes, input_bytes

#: of what is stepped: less is not worth a word
_MUCH = 0.01
#: of what the operator writes that is called most: one that writes less leaves parameters out
_MIN_WRITTEN = 0.2
#: of the gradients that a backward pass makes, so many must be known
_MOST = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Stepped:
    """What an optimizer steps."""

    #: copies of the weights, as sizes; empty if it steps the weights themselves
    copies: tuple[int, ...] = ()
    #: it steps something else, or gradients go somewhere, and the trace does not tell what
    is_unclear: bool = False


def find_stepped(trace: Trace, linked: LinkedSet, trained: Sequence[int]) -> Stepped:
    """Hold what the last step writes to against what is trained."""
    if not linked.steps:
        return Stepped()
    last = linked.steps[-1]
    positions = {
        at
        for at, call in enumerate(linked.calls)
        if call.phase is Phase.OPTIMIZER and last.begin_us <= call.op.begin_us <= last.end_us
    }
    known = frozenset(trained)
    if written := _written(linked, positions):
        others = sum(size for size in written if size not in known)
        return Stepped(copies=tuple(written) if others > _MUCH * sum(written) else ())
    made = [
        one.block.size_bytes
        for one in linked.blocks
        if one.call in positions and one.block.free_us is not None and not one.is_internal
    ]
    unknown = sum(size for size in made if size not in known and size > SCALAR_BYTES)
    return Stepped(
        is_unclear=unknown > _MUCH * sum(made)
        or len(trained) < _MOST * max(map(len, find_passes(trace, linked)), default=0)
    )


def _written(linked: LinkedSet, positions: set[int]) -> list[int]:
    """Return the sizes that a step writes to once, in order; none if shapes are not known."""
    sizes: dict[str, list[int]] = {}
    for at in sorted(positions):
        op = linked.calls[at].op
        if op.name.endswith("_") and op.input_dims and op.input_dims[0]:
            sizes.setdefault(op.name, []).append(input_bytes(op, 0))
    most = max(map(sum, sizes.values()), default=0)
    all_written = (mine for mine in sizes.values() if sum(mine) >= _MIN_WRITTEN * most)
    return min(all_written, key=len, default=[])
