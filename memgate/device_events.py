"""Memory events of GPUs in a trace, as they stand in the file -> DeviceEvents, checked.

PyTorch 1.9 and older wrote sizes alone: no addresses, and no totals. Those files are measurements
all the same: a free is taken to be of the last block of its size, which changes no sum, and totals
are added up from what the trace shows. What is older than the trace, and is never freed in it, is
then not known, so its totals are the least that there was.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, groupby

from msgspec import Struct, structs

from memgate.errors import TraceFormatError
from memgate.mistakes import show_value
from memgate.timeline import MAX_SIZE_BYTES
from memgate.trace_file import FileArgs, FileEvent
from memgate.trace_kinds import CUDA

#: PyTorch keeps the number of a device in a signed byte
_MAX_DEVICE = 127


class DeviceEvent(Struct, frozen=True, order=True, gc=False):
    """Memory of a GPU was allocated, or freed."""

    at_us: float
    thread: int
    #: its number, as in ``cuda:1``
    device: int
    address: int
    #: as the allocator rounded it; negative for a free
    size_bytes: int
    #: of the device in this process, after the event
    allocated_bytes: int
    reserved_bytes: int


def check_device(args: FileArgs) -> None:
    """Refuse the number of a device that PyTorch cannot have written.

    Raises:
        TraceFormatError: if it is one.
    """
    first = 0 if args.device_type == CUDA else -1
    if not first <= args.device <= _MAX_DEVICE:
        raise TraceFormatError(
            f"'Device Id' of a [memory] event is {show_value(args.device)}: PyTorch numbers GPUs"
            f" from 0 to {_MAX_DEVICE}, and writes -1 for a CPU"
        )


def lack_totals(events: Iterable[FileEvent]) -> bool:
    """Tell whether memory events of GPUs have sizes alone."""
    return all(
        args.address is None and args.allocated_bytes is None and args.reserved_bytes is None
        for args in _of_gpus(events)
    )


def read_device_events(events: Sequence[FileEvent]) -> tuple[DeviceEvent, ...]:
    """Check the memory events of GPUs, and fill in what old files do not have.

    Raises:
        TraceFormatError: if an event lacks something, or has sizes that no GPU has.
    """
    mine = [event for event in events if event.args and event.args.device_type == CUDA]
    return tuple(_add_up(mine) if lack_totals(mine) else map(_read, mine))


def thread_of(event: FileEvent) -> int:
    """Return the thread of an event; 0 for those that have names."""
    return event.thread if isinstance(event.thread, int) else 0


def _of_gpus(events: Iterable[FileEvent]) -> Iterator[FileArgs]:
    return (event.args for event in events if event.args and event.args.device_type == CUDA)


def _read(event: FileEvent) -> DeviceEvent:
    args = event.args
    assert args is not None
    if (
        event.begin_us is None
        or args.address is None
        or args.size_bytes is None
        or args.allocated_bytes is None
        or args.reserved_bytes is None
    ):
        raise TraceFormatError(
            "a [memory] event of a GPU lacks 'ts', 'Addr', 'Bytes', 'Total Allocated' or"
            " 'Total Reserved'"
        )
    totals = (args.allocated_bytes, args.reserved_bytes)
    _check_sizes(args.size_bytes, totals)
    return DeviceEvent(
        event.begin_us, thread_of(event), args.device, args.address, args.size_bytes, *totals
    )


def _check_sizes(size_bytes: int, totals: tuple[int, int]) -> None:
    if abs(size_bytes) > MAX_SIZE_BYTES or not all(0 <= one <= MAX_SIZE_BYTES for one in totals):
        raise TraceFormatError(
            f"a [memory] event of a GPU has {show_value(size_bytes)} bytes, and"
            f" {show_value(totals)} in all"
        )


def _add_up(events: Iterable[FileEvent]) -> Iterator[DeviceEvent]:
    """Pair allocations and frees by their size, and add up what is allocated on each device."""
    addresses = count(1)
    sized = sorted(map(_read_size, events), key=lambda event: (event.device, event.at_us))
    for _, mine in groupby(sized, key=lambda event: event.device):
        named = list(_name_blocks(mine, addresses))
        seen: set[int] = set()
        allocated = 0
        for event in named:  # what is freed and never allocated was there before
            if event.size_bytes < 0 and event.address not in seen:
                allocated -= event.size_bytes
            seen.add(event.address)
        for event in named:
            allocated += event.size_bytes
            _check_sizes(event.size_bytes, (allocated, 0))
            yield structs.replace(event, allocated_bytes=allocated)


def _read_size(event: FileEvent) -> DeviceEvent:
    args = event.args
    assert args is not None
    if event.begin_us is None or args.size_bytes is None:
        raise TraceFormatError("a [memory] event of a GPU lacks 'ts' or 'Bytes'")
    _check_sizes(args.size_bytes, (0, 0))
    return DeviceEvent(event.begin_us, thread_of(event), args.device, 0, args.size_bytes, 0, 0)


def _name_blocks(events: Iterable[DeviceEvent], addresses: Iterator[int]) -> Iterator[DeviceEvent]:
    """Give each block an address of its own; a free is of the last block of its size."""
    live: defaultdict[int, list[int]] = defaultdict(list)
    for event in events:
        size = abs(event.size_bytes)
        if event.size_bytes < 0 and live[size]:
            address = live[size].pop()
        else:
            address = next(addresses)
            if event.size_bytes > 0:
                live[size].append(address)
        yield structs.replace(event, address=address)
