"""What is different about a GPU: small rules, each turning a plan into a better one.

A rule has a name, a reason and no state. ``RULES`` is their order. Sizes are PyTorch's own, as seen
in the phantom engine, which runs it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import prod

from memgate.links import Call, LinkedSet
from memgate.optimizer_rules import listed_steps
from memgate.plan import DeviceTraits, Plan, PlannedBlock, plan_within
from memgate.reductions import column_sums
from memgate.timeline import Category, Phase
from memgate.trace import OpEvent
from memgate.units import KIB, MIB
from memgate.weights import SCALAR_BYTES, input_bytes

#: cuBLAS gets a workspace of this size per thread that uses it
_CUBLAS_WORKSPACE_BYTES = 8320 * KIB
_CUBLAS_WORKSPACE_SM90_BYTES = 32 * MIB
#: cuBLASLt, which multiplies and adds a bias at once, got one per call: seen in torch 2.6 and not
#: in 2.14; the version in between at which that ended is a guess
_LT_WORKSPACE_BYTES = MIB
_LT_SHARES_SINCE = (2, 8)

_MATMULS = frozenset(
    {"aten::linear", "aten::addmm", "aten::mm", "aten::bmm", "aten::matmul", "aten::baddbmm"}
)
_ATTENTION = "aten::scaled_dot_product_attention"
#: of the backward pass, if the CPU fused attention itself
_FUSED_NODE = "ScaledDotProduct"
#: the result, and a number per query
_FUSED_BLOCKS = 2
#: to a device, or to another type
_MOVE = "aten::to"
#: which input of the first call is the batch, if it is not the first
_BATCH_INPUT = {"aten::embedding": 1}
#: more indices than this, and the backward pass of an embedding sorts them
_SORTED_FROM_INDICES = 3072
#: memory-efficient attention keeps a number per query, in rows of a multiple of this
_ATTENTION_ROW = 32


def without_internals(linked: LinkedSet, plan: Plan, device: DeviceTraits) -> Plan:
    """Drop what a call allocates and frees within itself: a CPU's kernels, not a GPU's."""
    del linked, device
    return [block for block in plan if not block.is_internal]


def without_host_memory(linked: LinkedSet, plan: Plan, device: DeviceTraits) -> Plan:
    """Drop numbers that became tensors, counters of steps, and what prepares a batch."""
    del device
    moved = _find_moved(linked)
    return [block for block in plan if not _is_host_memory(linked, block, moved)]


def _find_moved(linked: LinkedSet) -> frozenset[int]:
    """Return the calls that come after a batch is moved to the device, before a forward pass.

    A CPU has nowhere to move it to, but the call is there.
    """
    moved: set[int] = set()
    waiting: list[int] | None = None
    for position, call in enumerate(linked.calls):
        if call.phase is Phase.FORWARD:
            moved.update(waiting or ())
        if call.phase is not Phase.BETWEEN:
            waiting = None
        elif call.op.name == _MOVE:
            waiting = []
        elif waiting is not None:
            waiting.append(position)
    return frozenset(moved)


def _is_host_memory(linked: LinkedSet, block: PlannedBlock, moved: Collection[int]) -> bool:
    if block.call is None:
        return True
    phase = linked.calls[block.call].phase
    if phase is Phase.BETWEEN:
        return block.category is Category.TEMPORARY and block.call not in moved
    return phase is Phase.OPTIMIZER and block.size_bytes <= SCALAR_BYTES


def missing_batches(linked: LinkedSet, plan: Plan, device: DeviceTraits) -> Plan:
    """Add the batch to iterations in which the trace shows none being made.

    A loader in another process, or a batch that is older than the trace, leaves no mark; but what
    the first call of the forward pass reads is known, and on a GPU it is a copy of the batch, which
    stays until the next one is there.
    """
    del device
    firsts: dict[int, int] = {}
    for position, call in enumerate(linked.calls):
        if call.phase is Phase.FORWARD:
            firsts.setdefault(call.iteration, position)
    begins = [linked.calls[position].op.begin_us for position in firsts.values()]
    shown = [(block.alloc_us, block.free_us) for block in plan if block.category is Category.BATCH]
    added = []
    for number, (position, begin_us) in enumerate(zip(firsts.values(), begins, strict=True)):
        op = linked.calls[position].op
        size = input_bytes(op, _BATCH_INPUT.get(op.name, 0))
        is_shown = any(
            alloc_us < begin_us and (free_us is None or free_us > begin_us)
            for alloc_us, free_us in shown
        )
        if size and not is_shown:
            until = begins[number + 1] if number + 1 < len(begins) else None
            added.append(PlannedBlock(size, begin_us, until, position, Category.BATCH))
    return plan + added


def dropout_masks(linked: LinkedSet, plan: Plan, device: DeviceTraits) -> Plan:
    """Let a mask take one byte per element: a CPU keeps it as wide as its input."""
    del device
    changed = list(plan)
    for call, indices in _by_call(linked, plan, "aten::dropout").items():
        op, mask = linked.calls[call].op, plan[indices[0]]
        if len(indices) >= 2 and input_bytes(op, 0) in (0, mask.size_bytes):
            # without shapes the input is taken to be of 4-byte numbers
            num = prod(op.input_dims[0]) if op.input_dims else mask.size_bytes // 4
            changed[indices[0]] = mask._replace(size_bytes=num)
    return changed


def _by_call(linked: LinkedSet, plan: Plan, name: str) -> dict[int, list[int]]:
    """Return the blocks that each call of an operator left, as positions in the plan."""
    blocks: dict[int, list[int]] = {}
    for index, block in enumerate(plan):
        if block.call is not None and linked.calls[block.call].op.name == name:
            blocks.setdefault(block.call, []).append(index)
    return blocks


def batch_norm_order(linked: LinkedSet, plan: Plan, device: DeviceTraits) -> Plan:
    """Let the backward pass of batch norm make the gradient of its input first, as cuDNN's does."""
    del device
    changed = list(plan)
    for indices in _by_call(linked, plan, "aten::native_batch_norm_backward").values():
        moments = sorted(plan[index].alloc_us for index in indices)
        largest_first = sorted(indices, key=lambda index: -plan[index].size_bytes)
        for index, alloc_us in zip(largest_first, moments, strict=True):
            changed[index] = plan[index]._replace(alloc_us=alloc_us)
    return changed


def fused_attention(linked: LinkedSet, plan: Plan, device: DeviceTraits) -> Plan:
    """Let attention keep its result and a number per query, not the full attention matrix.

    A CPU has a fused kernel too, but not with dropout, nor for a mask that is learned: then it
    multiplies matrices and keeps them, scaled, instead of its inputs.
    """
    del device
    found = _by_call(linked, plan, _ATTENTION)
    backward: dict[int, list[Call]] = {call: [] for call in found}
    for call in linked.calls:
        if call.forward_call in backward:
            backward[call.forward_call].append(call)
    unfused = {
        position: found[position]
        for position, calls in backward.items()
        if not any(_FUSED_NODE in call.node for call in calls)
        and len(found[position]) > _FUSED_BLOCKS
    }
    backward = {position: backward[position] for position in unfused}
    fused, kept = {}, dict(enumerate(plan))
    inputs = _BySize(linked, plan)
    for position, indices in unfused.items():
        result = plan[indices[-1]]
        ended = backward[position][-1].op.end_us if backward[position] else result.free_us
        op = linked.calls[position].op
        per_query = 4 * prod(op.input_dims[0][:3]) if op.input_dims else 0
        rows = PlannedBlock(
            per_query, result.alloc_us, ended, position, Category.ACTIVATIONS, False
        )
        fused[position] = [result, rows]
        for index in inputs.live_inputs(op, result.size_bytes):
            free_us = kept[index].free_us
            if ended is not None and free_us is not None and free_us < ended:
                kept[index] = kept[index]._replace(free_us=ended, category=Category.ACTIVATIONS)
    return [
        block
        for block in kept.values()
        if block.call not in fused and not _is_within(linked, block, backward)
    ] + [block for blocks in fused.values() for block in blocks]


class _BySize:
    """Planned blocks by their size: a trace does not say which blocks an operator reads."""

    def __init__(self, linked: LinkedSet, plan: Plan) -> None:
        self._calls = linked.calls
        self._plan = plan
        self._indices: dict[int, list[int]] = {}
        for index, block in enumerate(plan):
            self._indices.setdefault(block.size_bytes, []).append(index)

    def live_inputs(self, op: OpEvent, result_bytes: int) -> Iterator[int]:
        """Find what attention reads: q, k and v, or the block that some of them are parts of.

        Without shapes, each is as large as the result.
        """
        q, k, v = (input_bytes(op, at) or result_bytes for at in range(3))
        mask = [input_bytes(op, at) for at in range(3, len(op.input_dims))]
        for together in ([q, k, v], [q + k + v], [q, k + v]):
            found = [*self._live(op, together, is_product=True)]
            if len(found) == len(together):
                return iter([*found, *self._live(op, mask)])
        return self._live(op, [q, k, v, *mask])

    def _live(
        self, op: OpEvent, sizes: Iterable[int], *, is_product: bool = False
    ) -> Iterator[int]:
        """Take for each size the newest block that is there when the operator runs.

        ``is_product``: only out of those that multiplications with weights made.
        """
        taken: set[int] = set()
        for size in sizes:
            same = self._indices.get(size, [])
            begun = bisect_right(same, op.begin_us, key=lambda index: self._plan[index].alloc_us)
            for index in reversed(same[:begun]):
                block = self._plan[index]
                is_live = block.free_us is None or block.free_us >= op.end_us
                if index in taken or not is_live or (is_product and not self._is_product(block)):
                    continue
                taken.add(index)
                yield index
                break

    def _is_product(self, block: PlannedBlock) -> bool:
        return block.call is not None and self._calls[block.call].op.name in _MATMULS


def _is_within(
    linked: LinkedSet, block: PlannedBlock, groups: Mapping[int, Sequence[Call]]
) -> bool:
    """Say whether a block lives within the backward pass of one forward call."""
    if block.call is None or block.free_us is None:
        return False
    forward = linked.calls[block.call].forward_call
    group = groups.get(forward, ()) if forward is not None else ()
    return len(group) > 0 and block.free_us <= group[-1].op.end_us


def attention_rows(linked: LinkedSet, plan: Plan, device: DeviceTraits) -> Plan:
    """Pad what attention keeps for each query as the memory-efficient kernel does."""
    del device
    changed = list(plan)
    for call, indices in _by_call(linked, plan, _ATTENTION).items():
        dims, last = linked.calls[call].op.input_dims, indices[-1]
        if dims and len(dims[0]) == 4 and plan[last].size_bytes == prod(dims[0][:3]) * 4:
            batch, heads, queries, _ = dims[0]
            row = -(-queries // _ATTENTION_ROW) * _ATTENTION_ROW
            changed[last] = plan[last]._replace(size_bytes=batch * heads * row * 4)
    return changed


def cublas_workspaces(linked: LinkedSet, plan: Plan, device: DeviceTraits) -> Plan:
    """Add what cuBLAS keeps: once for the forward thread, once for the backward thread."""
    size = (
        _CUBLAS_WORKSPACE_SM90_BYTES
        if device.compute_capability >= (9, 0)
        else _CUBLAS_WORKSPACE_BYTES
    )
    added = []
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        first = next(
            (
                position
                for position, call in enumerate(linked.calls)
                if call.phase is phase and call.op.name in _MATMULS
            ),
            None,
        )
        if first is not None:
            at_us = linked.calls[first].op.end_us
            added.append(PlannedBlock(size, at_us, None, first, Category.WORKSPACE))
    return plan + added


def lt_workspaces(linked: LinkedSet, plan: Plan, device: DeviceTraits) -> Plan:
    """Add what cuBLASLt gets while it multiplies and adds a bias, before it shared cuBLAS's."""
    if device.torch_version >= _LT_SHARES_SINCE:
        return plan
    return plan + [
        plan_within(call, position, _LT_WORKSPACE_BYTES, Category.WORKSPACE)
        for position, call in enumerate(linked.calls)
        if _adds_a_bias(call)
    ]


def _adds_a_bias(call: Call) -> bool:
    dims = call.op.input_dims
    if call.op.name == "aten::linear":
        return len(dims) >= 3 and len(dims[2]) == 1
    return call.op.name == "aten::addmm" and bool(dims) and len(dims[0]) == 1


def softmax_products(linked: LinkedSet, plan: Plan, device: DeviceTraits) -> Plan:
    """Add the product that the backward pass of a softmax makes first."""
    del device
    made = _by_call(linked, plan, "aten::_softmax_backward_data")
    return plan + [
        plan_within(
            linked.calls[position],
            position,
            max(plan[index].size_bytes for index in indices),
            Category.TEMPORARY,
        )
        for position, indices in made.items()
    ]


def sorted_indices(linked: LinkedSet, plan: Plan, device: DeviceTraits) -> Plan:
    """Add what the backward pass of an embedding sorts its indices with."""
    del device
    added = []
    for position, call in enumerate(linked.calls):
        dims = call.op.input_dims
        if call.op.name != "aten::embedding_backward" or len(dims) < 2:
            continue
        num_indices = prod(dims[1])
        if num_indices > _SORTED_FROM_INDICES:
            # sorted, original and a range, each of int64, and as much again to sort with
            added += [plan_within(call, position, 8 * num_indices, Category.TEMPORARY)] * 3
            added.append(plan_within(call, position, 2 * 8 * num_indices, Category.TEMPORARY))
    return plan + added


Rule = Callable[[LinkedSet, Plan, DeviceTraits], Plan]

RULES: Sequence[Rule] = (
    without_internals,
    without_host_memory,
    missing_batches,
    listed_steps,
    dropout_masks,
    batch_norm_order,
    fused_attention,
    attention_rows,
    softmax_products,
    sorted_indices,
    column_sums,
    cublas_workspaces,
    lt_workspaces,
)
