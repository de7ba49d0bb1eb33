"""What CUDA's kernel for sums takes for itself: PyTorch's ``setReduceConfig``, for columns.

The gradient of a bias is the sum of each column of a matrix. With few columns and many rows, the
rows are divided among blocks of threads, and what those have summed up goes to memory first.
"""

from __future__ import annotations

from math import prod

from memgate.links import LinkedSet
from memgate.plan import DeviceTraits, Plan, plan_within
from memgate.timeline import Category
from memgate.trace import OpEvent
from memgate.weights import input_bytes

_SUM = "aten::sum"
#: of the backward pass of a linear layer, whose input may be in pieces, or of adding a bias
_OF_A_BIAS = frozenset({"AddmmBackward0", "AddBackward0"})
_LINEAR = frozenset({"aten::linear", "aten::addmm"})

#: of a block of threads; of a warp
_MAX_THREADS = 512
_WARP = 32
#: columns that a thread reads at once
_MAX_COLUMNS = 4
#: rows that a thread adds up
_MIN_ROWS, _MAX_ROWS = 16, 256
#: of a number, whatever was added up
_SUMMED_BYTES = 4
_SEMAPHORE_BYTES = 4

#: by compute capability, each up to the next
_THREADS_PER_MULTIPROCESSOR = {
    (7, 0): 2048,
    (7, 5): 1024,
    (8, 0): 2048,
    (8, 6): 1536,
    (9, 0): 2048,
    (12, 0): 1536,
}


def column_sums(linked: LinkedSet, plan: Plan, device: DeviceTraits) -> Plan:
    """Add what the gradient of a bias is summed up in, before it is one number per column."""
    made = {
        call: block.size_bytes
        for block, call, is_internal in linked.blocks
        if call is not None and not is_internal
    }
    added = []
    for position, call in enumerate(linked.calls):
        if call.op.name != _SUM or call.node not in _OF_A_BIAS or call.forward_call is None:
            continue
        result, of_forward = made.get(position, 0), made.get(call.forward_call, 0)
        num_columns = _count_columns(call.op, linked.calls[call.forward_call].op, result)
        # what a layer makes last has as many rows as its gradient
        sizes = sum_buffers(of_forward // result, num_columns, device) if num_columns else ()
        added += [plan_within(call, position, size, Category.TEMPORARY) for size in sizes]
    return plan + added


def _count_columns(sums: OpEvent, layer: OpEvent, result_bytes: int) -> int:
    """Return the numbers that sums over all dimensions but the last have; 0 of other sums.

    Without shapes, only a linear layer is known to have made such sums, of 4-byte numbers.
    """
    if not sums.input_dims:
        return result_bytes // _SUMMED_BYTES if layer.name in _LINEAR else 0
    *_, columns = (0, *sums.input_dims[0])
    item_bytes = input_bytes(sums, 0) // max(1, prod(sums.input_dims[0]))
    return columns if 0 < columns * item_bytes == result_bytes else 0


def sum_buffers(num_rows: int, num_columns: int, device: DeviceTraits) -> tuple[int, ...]:
    """Return what the sums of columns take besides their results; nothing if rows are few."""
    if not num_rows:
        return ()
    at_once = _MAX_COLUMNS
    while num_columns % at_once:
        at_once //= 2
    max_threads = _MAX_THREADS // at_once
    across = min(_last_power(num_columns // at_once), max_threads)
    down = min(_last_power(num_rows), max_threads)
    width = min(across, _WARP)
    height = min(down, max_threads // width)
    width = min(across, max_threads // height)
    if num_rows < min(height * _MIN_ROWS, _MAX_ROWS):
        return ()
    rows_per_thread = _divide_up(num_rows, height)
    grid = _divide_up(num_columns // at_once, width)
    wanted = device.multiprocessors * (_threads_per_multiprocessor(device) // (width * height))
    if rows_per_thread < _MAX_ROWS or grid > wanted:
        return ()
    num_parts = max(
        min(_divide_up(wanted, grid), _divide_up(rows_per_thread, _MIN_ROWS)),
        _divide_up(rows_per_thread, _MAX_ROWS),
    )
    if num_parts == 1:
        return ()
    return (
        _SUMMED_BYTES * num_columns * num_parts * width * at_once,
        _SEMAPHORE_BYTES * grid,
    )


def _last_power(number: int) -> int:
    """Return the largest power of two that is not larger."""
    return 1 << (number.bit_length() - 1)


def _divide_up(number: int, by: int) -> int:
    return -(-number // by)


def _threads_per_multiprocessor(device: DeviceTraits) -> int:
    known = [
        threads
        for capability, threads in _THREADS_PER_MULTIPROCESSOR.items()
        if capability <= device.compute_capability
    ]
    return known[-1] if known else 2048
