"""The device under the allocator: how much memory is left, at which addresses it is handed out.

A stand-in for cudaMalloc, cudaFree, cuMemCreate, cuMemAddressReserve and cudaMemGetInfo. Addresses
are plain numbers: nothing is ever stored behind them.

Note [Where segments lie]
Of two free blocks of equal size torch 2.14.1 takes the one whose segment is older (driven with
segments placed downwards in memory, the real allocator gave the same answers in all 401 recordings
without expandable segments). So addresses are counted upwards in the order of creation, and where a
driver puts a segment makes no difference. Earlier versions compare addresses, and are modelled
correctly as long as the driver hands out rising ones. One thing still depends on real addresses:
the search for the lowest empty stretch among several expandable segments. ``AddressPolicy`` places
those.
"""

from __future__ import annotations

from bisect import insort
from enum import StrEnum

from memgate.allocator.window import WHOLE, CapacityWindow, share_of


class AddressPolicy(StrEnum):
    """Where the driver puts the range of a new expandable segment. NVIDIA does not document it."""

    #: above all earlier ones
    UP = "up"
    #: below all earlier ones
    DOWN = "down"
    #: the lowest place where a range of this size was given back, otherwise above all earlier ones
    REUSE = "reuse"


#: where addresses start: above zero, so that there is room below
_BASE_ADDRESS = 1 << 58


class Device:
    """The memory accounts of one GPU."""

    __slots__ = (
        "_bottom",
        "_highest",
        "_policy",
        "_released",
        "_top",
        "capacity_bytes",
        "free_bytes",
        "window",
    )

    def __init__(
        self,
        *,
        capacity_bytes: int,
        context_bytes: int = 0,
        address_policy: AddressPolicy = AddressPolicy.UP,
    ) -> None:
        """Make a device of ``capacity_bytes``, of which ``context_bytes`` are taken by others."""
        self.capacity_bytes = capacity_bytes
        #: what is left; negative if others take more than there is
        self.free_bytes = capacity_bytes - context_bytes
        #: on which devices all that was asked would have been answered the same
        self.window = CapacityWindow(capacity_bytes)
        self._policy = address_policy
        self._top = self._highest = self._bottom = _BASE_ADDRESS
        #: starts of the address ranges given back, by size
        self._released: dict[int, list[int]] = {}

    def malloc(self, size: int) -> int | None:
        """Return the address of ``size`` new bytes, or None if there are not enough."""
        return self.next_address(size) if self.create_pages(size) else None

    def next_address(self, size: int) -> int:
        """Return the start of the next ``size`` addresses in order of creation."""
        self._top += size
        return self._top - size

    def free(self, size: int) -> None:
        """Take back what ``malloc`` gave."""
        self.release_pages(size)

    def create_pages(self, size: int) -> bool:
        """Take ``size`` bytes of memory that have no address yet; False if there are not enough."""
        if not self.has_room(size):
            return False
        self.free_bytes -= size
        return True

    def has_room(self, size: int) -> bool:
        """Say whether ``size`` bytes are left."""
        return self.window.reaches(WHOLE, self.capacity_bytes - self.free_bytes + size)

    def release_pages(self, size: int) -> None:
        """Take back what ``create_pages`` gave."""
        self.free_bytes += size

    def place_range(self, size: int) -> int:
        """Return where the driver puts the range of an expandable segment; costs no memory."""
        if self._policy is AddressPolicy.DOWN:
            self._bottom -= size
            return self._bottom
        if self._policy is AddressPolicy.REUSE and self._released.get(size):
            return self._released[size].pop(0)
        self._highest += size
        return self._highest - size

    def release_range(self, address: int, size: int) -> None:
        """Take such a range back."""
        insort(self._released.setdefault(size, []), address)

    def allowed_bytes(self, fraction: float) -> int | None:
        """Return what a process limited to a share of the device may hold; None: no limit.

        Rounded to the nearest byte, halves up; a share of exactly 1.0 is no limit: as upstream.
        """
        return share_of(fraction).of(self.capacity_bytes) if fraction < 1.0 else None

    def allows(self, size: int, fraction: float) -> bool:
        """Say whether a process limited to a share of the device may hold ``size`` bytes."""
        return fraction >= 1.0 or self.window.reaches(share_of(fraction), size)
