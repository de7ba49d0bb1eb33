"""The allocators a replay can use, by name. A third one is added here: docs/allocator.md."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from memgate.allocator.caching import CachingAllocator
from memgate.allocator.config import AllocatorConfig
from memgate.allocator.device import Device
from memgate.allocator.direct import DirectAllocator
from memgate.allocator.protocol import Allocator, RecordTrace
from memgate.errors import InputError
from memgate.mistakes import unknown_name

MakeAllocator = Callable[[AllocatorConfig, Device, RecordTrace], Allocator[Any]]

ALLOCATORS: Mapping[str, MakeAllocator] = {
    "caching": CachingAllocator,
    "direct": DirectAllocator,
}


def make_allocator(
    name: str, config: AllocatorConfig, device: Device, record_trace: RecordTrace
) -> Allocator[Any]:
    """Make an empty allocator of the given name over a device."""
    if name not in ALLOCATORS:
        mistake = unknown_name("allocator", name, ALLOCATORS, rule="there is no such allocator")
        raise InputError.from_mistakes(mistake)
    return ALLOCATORS[name](config, device, record_trace)
