"""The settings of the caching allocator, as values. Reading them from text: ``alloc_conf.py``."""

from __future__ import annotations

from dataclasses import dataclass, field

from memgate.allocator.sizes import LARGE_BUFFER
from memgate.units import MIB

#: what "unlimited" is upstream: the largest size_t
UNLIMITED = 2**64 - 1

#: ``roundup_power2_divisions`` has one entry per power of two from 1 MiB to 32 GiB
POWER2_INTERVALS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorConfig:
    """The settings that change what the allocator does on the device. Sizes are bytes."""

    #: blocks of at least this size are never split, and serve only requests as large
    max_split_size: int = UNLIMITED
    #: how much larger than the request an unsplittable block may be
    max_non_split_rounding_size: int = LARGE_BUFFER
    #: share of the memory fraction above which old cached segments are given back; 0: never
    garbage_collection_threshold: float = 0.0
    #: steps between two powers of two to round up to, for sizes of 1 MiB, 2 MiB, ... 32 GiB
    roundup_power2_divisions: tuple[int, ...] = (0,) * POWER2_INTERVALS
    #: grow one address range page by page instead of opening segments
    expandable_segments: bool = False
    #: segment size for requests between 1 MiB and 10 MiB, and page size of large expandable ones
    large_segment_size: int = LARGE_BUFFER
    #: share of the device's capacity the process may take; 1.0: no limit
    per_process_memory_fraction: float = 1.0
    #: refuse a request that the device cannot serve before any cached memory is given back
    throw_on_cudamalloc_oom: bool = False

    #: some size is rounded to a fraction of a power of two; follows from the divisions
    rounds_to_power2: bool = field(init=False)

    def __post_init__(self) -> None:
        assert len(self.roundup_power2_divisions) == POWER2_INTERVALS
        object.__setattr__(self, "rounds_to_power2", any(self.roundup_power2_divisions))

    @property
    def limits_splits(self) -> bool:
        """``max_split_size_mb`` is set."""
        return self.max_split_size != UNLIMITED

    def power2_divisions_for(self, size: int) -> int:
        """Return the number of steps that applies to a size."""
        interval = size.bit_length() - MIB.bit_length()
        return self.roundup_power2_divisions[min(max(interval, 0), POWER2_INTERVALS - 1)]
