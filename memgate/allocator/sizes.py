"""The caching allocator's arithmetic: from a requested size to a block size and a segment size.

Pure functions and constants, named as upstream names them. Nothing here knows blocks or pools.

Upstream: c10/core/AllocatorConfig.h (constants) and c10/cuda/CUDACachingAllocator.cpp (functions),
https://github.com/pytorch/pytorch/blob/v2.14.1/c10/core/AllocatorConfig.h
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from memgate.units import MIB

if TYPE_CHECKING:
    from memgate.allocator.config import AllocatorConfig

#: every block is a multiple of this
MIN_BLOCK_SIZE = 512
#: the largest request that the small pool serves
SMALL_SIZE = 1 * MIB
#: small requests are packed into segments of this size
SMALL_BUFFER = 2 * MIB
#: requests from here on get a segment of their own size; below, they share ``large_segment_size``
MIN_LARGE_ALLOC = 10 * MIB
#: segments of their own size are a multiple of this
ROUND_LARGE = 2 * MIB
#: physical memory comes in multiples of this (cuMemGetAllocationGranularity)
EXPANDABLE_GRANULARITY = 2 * MIB
#: what ``large_segment_size`` is unless a setting says otherwise
LARGE_BUFFER = 20 * MIB


def round_size(size: int, config: AllocatorConfig) -> int:
    """Return the block size for a request: a multiple of 512, or a fraction of a power of two."""
    if size < MIN_BLOCK_SIZE:
        return MIN_BLOCK_SIZE
    if config.rounds_to_power2:
        divisions = config.power2_divisions_for(size)
        if divisions > 1 and size > MIN_BLOCK_SIZE * divisions:
            return roundup_power2_next_division(size, divisions)
    return (size + MIN_BLOCK_SIZE - 1) // MIN_BLOCK_SIZE * MIN_BLOCK_SIZE


def roundup_power2_next_division(size: int, divisions: int) -> int:
    """Round up to the next of ``divisions`` equal steps between two powers of two.

    With 4 divisions, 1200 lies between 1024 and 2048, steps are 256 wide, and the answer is 1280.
    """
    if size & (size - 1) == 0:
        return size
    power2_floor = 1 << (size.bit_length() - 1)
    step = power2_floor // divisions
    return (size + step - 1) // step * step


def get_allocation_size(size: int, config: AllocatorConfig) -> int:
    """Return the size of the segment to ask the device for when no cached block serves ``size``."""
    if size <= SMALL_SIZE:
        return SMALL_BUFFER
    if size < MIN_LARGE_ALLOC:
        return config.large_segment_size
    return (size + ROUND_LARGE - 1) // ROUND_LARGE * ROUND_LARGE


def should_split(remaining: int, size: int, is_small: bool, config: AllocatorConfig) -> bool:
    """Say whether what remains of a block is split off once ``size`` is taken from it."""
    if is_small or config.expandable_segments:
        return remaining >= MIN_BLOCK_SIZE
    return size < config.max_split_size and remaining > SMALL_SIZE
