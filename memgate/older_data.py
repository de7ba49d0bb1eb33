"""LinkedSet -> whether the job reads data that is older than its trace, and may be on the GPU.

A data set that was put on the device before the trace began leaves no event. What is read of it in
parts, for each batch, shows that it is there: with shapes, how large it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from memgate.links import LinkedBlock, LinkedSet
from memgate.report import Reason
from memgate.residents import Residents
from memgate.timeline import Phase
from memgate.trace import OpEvent, Trace
from memgate.units import format_size
from memgate.weights import SCALAR_BYTES, input_bytes

#: read some of a tensor
_READ_PARTS = frozenset(
    f"aten::{name}" for name in ("gather", "index", "index_select", "narrow", "select", "slice")
)
#: compute with two tensors, neither of which is a weight as a rule
_COMBINING = frozenset(
    f"aten::{name}"
    for name in ("add", "bmm", "cdist", "div", "gt", "lt", "matmul", "mm", "mul", "sub", "where")
)
#: types of numbers, as the profiler names them
_NUMBERS = frozenset({"float", "double", "c10::Half", "c10::BFloat16"})
#: make a tensor that is larger than its memory
_SPREAD = frozenset(
    f"aten::{name}"
    for name in ("as_strided", "broadcast_tensors", "broadcast_to", "expand", "expand_as", "unfold")
)
#: of these, what they read is copied
_COPY_PARTS = frozenset({"aten::gather", "aten::index", "aten::index_select", "aten::take"})


def doubt_older_data(trace: Trace, linked: LinkedSet, residents: Residents) -> Iterator[Reason]:
    """Yield why there may be data on the device that the trace does not count."""
    has_shapes = "record_shapes=True" not in trace.missing_flags
    if unseen := _find_unseen(linked, residents):
        yield Reason(
            code="OLDER_DATA_READ",
            message=f"the job reads {format_size(unseen)} that are older than the trace, such as a"
            " data set or a table: if they are on the GPU, it needs that much more; record the"
            " making of it, too",
        )
    elif not has_shapes and _takes_batches(linked):
        yield Reason(
            code="OLDER_DATA_READ",
            message="the job takes its batches out of something that is older than the trace, such"
            " as a data set, and without record_shapes=True its size is not known: if it is on the"
            " GPU, the job needs that much more; record with record_shapes=True",
        )
    if not has_shapes and not _shows_batch(linked):
        yield Reason(
            code="BATCH_UNSEEN",
            message="the batch was not made while the profiler recorded, and without"
            " record_shapes=True its size is not known; record with record_shapes=True",
        )


def _find_unseen(linked: LinkedSet, residents: Residents) -> int:
    """Return the size of the largest tensor that is read and is nowhere else to be seen."""
    return max(_find_unseen_parts(linked, residents), _find_unseen_operands(linked, residents))


def _find_unseen_parts(linked: LinkedSet, residents: Residents) -> int:
    """Return that of what is read in parts.

    Larger than every block and every weight, since a part of a part has any size.
    """
    read = max((input_bytes(op, 0) for op, *_ in linked.calls if op.name in _READ_PARTS), default=0)
    known = max((*(one.block.size_bytes for one in linked.blocks), *residents.model), default=0)
    return read if read > known else 0


def _find_unseen_operands(linked: LinkedSet, residents: Residents) -> int:
    """Return that of what is computed with: larger than all that is there at the time.

    A tensor that was spread over more than it has (``expand``) is read as if it were that large; in
    a job that does so, nothing is said. Backward passes do so everywhere.
    """
    if any(c.op.name in _SPREAD for c in linked.calls if c.phase is not Phase.BACKWARD):
        return 0
    weights = max((*residents.model, *residents.trained), default=0)
    blocks = sorted((one.block for one in linked.blocks), key=lambda block: block.alloc_us)
    alive: list[tuple[int, float]] = []
    position = unseen = 0
    for call in linked.calls:
        while position < len(blocks) and blocks[position].alloc_us < call.op.begin_us:
            free_us = blocks[position].free_us
            end_us = float("inf") if free_us is None else free_us
            heappush(alive, (-blocks[position].size_bytes, end_us))
            position += 1
        while alive and alive[0][1] <= call.op.begin_us:
            heappop(alive)
        largest = max(weights, -alive[0][0] if alive else 0)
        if call.phase is Phase.FORWARD and call.op.name in _COMBINING:
            read = max(_operands(call.op), default=0)
            unseen = max(unseen, read if read > largest else 0)
    return unseen


def _operands(op: OpEvent) -> Iterator[int]:
    for at, kind in enumerate(op.input_types):
        if kind in _NUMBERS:
            yield input_bytes(op, at)


def _takes_batches(linked: LinkedSet) -> bool:
    """Say whether parts are copied for a batch, and nothing is there that they could be parts of.

    What an iteration makes before, such as a batch that is put in another order, may be it; so may
    what was made before the first one.
    """
    made: list[LinkedBlock] = []
    iteration = 0
    for one in linked.blocks:
        if one.call is None:
            continue
        call = linked.calls[one.call]
        if call.iteration != iteration:
            iteration = call.iteration
            made = [older for older in made if _is_before_the_first(linked, older)]
        if call.phase is not Phase.BETWEEN:
            continue
        is_copied = call.op.name in _COPY_PARTS and one.block.size_bytes > SCALAR_BYTES
        if is_copied and not one.is_internal and not _could_be_of(made, one):
            return True
        made.append(one)
    return False


def _is_before_the_first(linked: LinkedSet, one: LinkedBlock) -> bool:
    return one.call is not None and linked.calls[one.call].iteration == 0


def _could_be_of(made: list[LinkedBlock], part: LinkedBlock) -> bool:
    """Say whether something is alive that is as large."""
    return any(
        one.block.size_bytes >= part.block.size_bytes
        and (one.block.free_us is None or one.block.free_us > part.block.alloc_us)
        for one in made
    )


def _shows_batch(linked: LinkedSet) -> bool:
    """Say whether something is made before a forward pass and outlives its beginning."""
    firsts = (call.op.begin_us for call in linked.calls if call.phase is Phase.FORWARD)
    begin_us = next(firsts, float("-inf"))
    return any(
        one.block.alloc_us < begin_us
        and (one.block.free_us is None or one.block.free_us > begin_us)
        for one in linked.blocks
        if one.call is not None
        and one.block.block_id not in linked.known
        and one.block.size_bytes > SCALAR_BYTES
    )
