"""Note [Expandable segments]: one address range per stream and pool that grows page by page.

Rationale. A segment from cudaMalloc never changes its size, so slightly larger requests leave
slivers behind. With ``expandable_segments:True`` PyTorch reserves an address range as large as the
device (and an eighth more), and puts physical pages behind it as the program grows.

Approach. The range is a chain of pool blocks: mapped ones, and unmapped ones that are address space
only. Pages are 2 MiB in the small pool, ``large_segment_size`` in the large one. Under pressure,
whole pages inside free blocks are unmapped and may be mapped again elsewhere.

Limits. Sharing between processes and peers is not modelled: it takes no memory.
"""

from __future__ import annotations

from memgate.allocator.device import Device
from memgate.allocator.window import addresses_in


class ExpandableSegment:
    """An address range, and the pages behind parts of it."""

    __slots__ = ("_device", "_placed_at", "page_size", "ptr", "size")

    def __init__(self, device: Device, page_size: int) -> None:
        self._device = device
        self.page_size = page_size
        self.size = addresses_in(page_size).of(device.capacity_bytes)
        #: in order of creation: Note [Where segments lie]
        self.ptr = device.next_address(self.size)
        self._placed_at = device.place_range(self.size)

    @property
    def end(self) -> int:
        """Where its addresses end."""
        return self.ptr + self.size

    def reaches(self, size: int) -> bool:
        """Say whether it is at least this large, as it might not be on another device."""
        return self._device.window.reaches(addresses_in(self.page_size), size)

    def address_of(self, ptr: int) -> int:
        """Return where the driver put what we count as ``ptr``."""
        return self._placed_at + ptr - self.ptr

    def map(self, size: int) -> int:
        """Put pages behind ``size`` bytes; return the bytes mapped, 0 if the device is full."""
        mapped = -(-size // self.page_size) * self.page_size
        return mapped if self._device.create_pages(mapped) else 0

    def unmap(self, ptr: int, size: int) -> tuple[int, int]:
        """Take back the whole pages inside a range; return where they began and their bytes."""
        first = -(-(ptr - self.ptr) // self.page_size)
        last = (ptr + size - self.ptr) // self.page_size
        if first >= last:
            return ptr, 0
        unmapped = (last - first) * self.page_size
        self._device.release_pages(unmapped)
        return self.ptr + first * self.page_size, unmapped

    def release(self) -> None:
        """Give the address range back."""
        self._device.release_range(self._placed_at, self.size)
