"""The capacities at which a replay would have gone the same way.

An allocator feels the capacity of its device in comparisons only: is there room for so much more?
Each is "is a limit, which grows with the capacity, at least this value?". What was answered yes at
a capacity would be at every larger one, and the other way round. So the largest value that was
reached, and the smallest that was missed, bound the capacities at which every answer is the same:
nothing between them has to be tried.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

#: larger than every device; "and everything above"
BEYOND_BYTES = 1 << 60


class LimitKind(Enum):
    """What a capacity is compared as."""

    #: all of it
    WHOLE = 0
    #: a memory fraction of it, to the nearest byte
    SHARE = 1
    #: the garbage collection threshold of such a share
    THRESHOLD = 2
    #: the addresses of an expandable segment: an eighth more than the device, in pages
    ADDRESSES = 3


class Limit(NamedTuple):
    """A number that grows with the capacity of a device."""

    kind: LimitKind = LimitKind.WHOLE
    fraction: float = 1.0
    threshold: float = 1.0
    page_size: int = 1

    def of(self, capacity_bytes: int) -> int:
        """Return the limit on a device."""
        match self.kind:
            case LimitKind.WHOLE:
                return capacity_bytes
            case LimitKind.ADDRESSES:
                address_space = capacity_bytes + capacity_bytes // 8
                return -(-address_space // self.page_size) * self.page_size
        share = int(self.fraction * capacity_bytes + 0.5)
        return share if self.kind is LimitKind.SHARE else int(self.threshold * share)

    def smallest_reaching(self, value: int) -> int:
        """Return the smallest capacity on which the limit is at least ``value``."""
        low, high = -1, BEYOND_BYTES
        while high - low > 1:
            middle = (low + high) // 2
            if self.of(middle) >= value:
                high = middle
            else:
                low = middle
        return high


WHOLE = Limit()


def share_of(fraction: float) -> Limit:
    """Return what a process limited to a share of the device may hold."""
    return Limit(LimitKind.SHARE, fraction)


def threshold_of(fraction: float, threshold: float) -> Limit:
    """Return what it may hold before its cache is collected."""
    return Limit(LimitKind.THRESHOLD, fraction, threshold)


def addresses_in(page_size: int) -> Limit:
    """Return the size of an expandable segment with pages of a size."""
    return Limit(LimitKind.ADDRESSES, page_size=page_size)


class CapacityWindow:
    """What was compared with the capacity of a device, and so where the answers would differ."""

    __slots__ = ("_capacity_bytes", "_least_missed", "_most_reached")

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity_bytes = capacity_bytes
        self._most_reached: dict[Limit, int] = {}
        self._least_missed: dict[Limit, int] = {}

    def reaches(self, limit: Limit, value: int) -> bool:
        """Say whether a limit is at least ``value``, and remember the answer."""
        if limit.of(self._capacity_bytes) >= value:
            self._most_reached[limit] = max(value, self._most_reached.get(limit, value))
            return True
        self._least_missed[limit] = min(value, self._least_missed.get(limit, value))
        return False

    @property
    def lowest_bytes(self) -> int:
        """The smallest capacity at which all answers are the same."""
        reached = self._most_reached.items()
        return max((limit.smallest_reaching(value) for limit, value in reached), default=0)

    @property
    def below_bytes(self) -> int:
        """The first larger capacity at which one differs; ``BEYOND_BYTES`` if none does."""
        missed = self._least_missed.items()
        return min(
            (limit.smallest_reaching(value) for limit, value in missed), default=BEYOND_BYTES
        )
