"""Timeline -> whether it shows a step of a training loop more than once.

Only then is the peak known: optimizers take their memory in the first step, and the second is often
the first with all of it. A step is a stretch of requests that is followed by the same again, size
by size, with as much memory in use at each: layers of a forward pass are alike, too, but memory
grows from one to the next.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

from memgate.timeline import Alloc, Free, Timeline
from memgate.units import KIB

#: steps must make up this part of all requests: a loop within a step is not one
_MIN_SHARE = 0.25
#: what may be in use more at a place in the next step: people collect losses
_MAX_GROWTH_BYTES = 64 * KIB
_MAX_GROWTH_RATIO = 0.001
#: requests from which a step is looked for, and earlier ones like it that are tried for each
_NUM_ANCHORS = 8
_NUM_TRIED = 32
#: comparisons, as a multiple of the requests, after which the search ends
_MAX_EFFORT = 32


class _Request(NamedTuple):
    size_bytes: int
    stream: int
    #: in use before it
    used_bytes: int


def shows_repeated_step(timeline: Timeline) -> bool:
    """Tell whether there are two steps, one after the other, that are alike."""
    requests = _find_requests(timeline)
    if not requests:
        return False
    search = _Search(requests)
    return any(search.try_anchor(anchor) for anchor in _choose_anchors(requests))


def _find_requests(timeline: Timeline) -> list[_Request]:
    """Return the requests of the history; what was there before is not one of them."""
    sizes: dict[int, int] = {}
    used = 0
    requests: list[_Request] = []
    residents = {
        block_id
        for segment in timeline.residents
        for block_id, _ in segment.pieces
        if block_id is not None
    }
    for event in timeline.events:
        if isinstance(event, Alloc):
            if event.block_id not in residents:
                requests.append(_Request(event.size_bytes, event.stream, used))
            sizes[event.block_id] = event.size_bytes
            used += event.size_bytes
        elif isinstance(event, Free):
            used -= sizes.pop(event.block_id)
    return requests


def _choose_anchors(requests: list[_Request]) -> list[int]:
    """Choose the last request at the peak, the last of all, and some between."""
    last = len(requests) - 1
    peak = max(range(len(requests)), key=lambda at: (requests[at].used_bytes, at))
    return [peak, *(last - last * part // _NUM_ANCHORS for part in range(_NUM_ANCHORS))]


class _Search:
    def __init__(self, requests: list[_Request]) -> None:
        self._requests = requests
        peak = max(request.used_bytes + request.size_bytes for request in requests)
        self._max_growth = min(_MAX_GROWTH_BYTES, int(peak * _MAX_GROWTH_RATIO))
        self._left = _MAX_EFFORT * len(requests)

    def try_anchor(self, anchor: int) -> bool:
        """Look for a step that ends with one request and began with an earlier one like it."""
        earlier = (at for at in range(anchor - 1, -1, -1) if self._are_alike(at, anchor))
        return any(self._repeats(anchor, anchor - at) for at in islice(earlier, _NUM_TRIED))

    def _repeats(self, anchor: int, period: int) -> bool:
        """Tell whether requests around one are like those a period earlier, for a period."""
        begin = end = anchor
        while begin >= period and self._are_alike(begin - period, begin):
            begin -= 1
        while end < len(self._requests) and self._are_alike(end - period, end):
            end += 1
        num_alike = end - begin - 1
        share = (num_alike + period) / len(self._requests)
        return num_alike >= period and share >= _MIN_SHARE

    def _are_alike(self, earlier: int, later: int) -> bool:
        self._left -= 1
        if self._left < 0:
            return False
        one, other = self._requests[earlier], self._requests[later]
        return (
            one.size_bytes == other.size_bytes
            and one.stream == other.stream
            and abs(one.used_bytes - other.used_bytes) <= self._max_growth
        )
