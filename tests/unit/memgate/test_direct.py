"""The second allocator: one cudaMalloc per request."""

from __future__ import annotations

import pytest

from memgate.allocator.allocators import make_allocator
from memgate.allocator.config import AllocatorConfig
from memgate.allocator.device import Device
from memgate.allocator.direct import DirectAllocator
from memgate.errors import SimulationError
from memgate.timeline import Alloc, EmptyCache, EventsPending, Free, RecordStream, SetFraction
from tests.builders import AMPLE, make_replay, mib


def test_what_is_reserved_is_what_is_allocated() -> None:
    """Every free goes back to the device at once."""
    run = make_replay(
        Alloc(1, mib(3)),
        Alloc(2, 100),
        RecordStream(1, 4),
        EventsPending(1),
        Free(1),
        EmptyCache(),
        allocator_name="direct",
    )

    assert [change.reserved_bytes for change in run.reserved_changes] == [
        mib(3),
        mib(3) + 512,
        512,
    ]
    assert [segment.total_size for segment in run.final_segments] == [512]


def test_it_runs_out_of_memory_where_the_device_does() -> None:
    """There is no cache to give back and nothing to retry."""
    run = make_replay(
        Alloc(1, mib(60)), Alloc(2, mib(50)), capacity=mib(100), allocator_name="direct"
    )

    assert run.oom is not None
    assert run.oom.details.free_bytes == mib(40)
    assert run.stats.num_alloc_retries == 0


def test_it_respects_the_memory_fraction() -> None:
    """A limited process is limited, however it allocates."""
    run = make_replay(
        SetFraction(0.5), Alloc(1, mib(60)), capacity=mib(100), allocator_name="direct"
    )

    assert run.oom is not None
    assert run.oom.details.allowed_bytes == mib(50)


def test_it_needs_no_more_than_the_caching_allocator() -> None:
    """Without caching there is no fragmentation: this is what the job itself needs."""
    events = (Alloc(1, mib(11)), Alloc(2, mib(3)), Free(1), Alloc(3, mib(12)))

    direct = make_replay(*events, allocator_name="direct").peak_reserved_bytes

    assert direct == mib(15)
    assert direct < make_replay(*events).peak_reserved_bytes


def test_its_books_are_checked() -> None:
    """A counter that disagrees with the blocks is a broken simulation."""
    device = Device(capacity_bytes=AMPLE)
    allocator = make_allocator("direct", AllocatorConfig(), device, lambda *_: None)
    assert isinstance(allocator, DirectAllocator)
    allocator.malloc(512, 0)
    allocator.check_invariants()

    allocator.stats.all.reserved_bytes += 1

    with pytest.raises(SimulationError, match="holds 512 bytes"):
        allocator.check_invariants()
