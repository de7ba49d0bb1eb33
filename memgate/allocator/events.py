"""Blocks that the program freed while other streams still use them, in upstream's order.

Upstream keeps a queue per stream in a hash table and walks the table. The order of the walk is an
accident of hashing, but it decides which of two neighbours is free first, and so how many bytes are
stranded for a moment between the two; the peaks of ``inactive_split`` show it. To match recordings
to the byte, the walk is repeated here: Fibonacci hashing into a power-of-two table that doubles
when half full (c10/util/flat_hash_map.h), over the handles that the recordings used.
"""

from __future__ import annotations

from memgate.allocator.pool import PoolBlock

#: 2**64 divided by the golden ratio
_FIBONACCI = 11400714819323198485
#: a hashed stream carries the device type (CUDA is 1) above its handle
_CUDA_DEVICE_TYPE = 1 << 56
#: stream n has the handle n * 16 in the recordings; real handles are addresses the driver chooses
_HANDLE_STEP = 16


class EventQueues:
    """One queue of waiting blocks per stream."""

    __slots__ = ("_table_bits", "by_stream")

    def __init__(self) -> None:
        #: empty while nothing waits, which is nearly always: ``malloc`` looks here first
        self.by_stream: dict[int, dict[PoolBlock, None]] = {}
        self._table_bits = 2

    def append(self, stream: int, block: PoolBlock) -> None:
        """Let a block wait for a stream."""
        if stream in self.by_stream:
            self.by_stream[stream][block] = None
            return
        self.by_stream[stream] = {block: None}
        if len(self.by_stream) > 1 << (self._table_bits - 1):
            self._table_bits += 1

    def remove(self, block: PoolBlock) -> None:
        """Let a block wait no longer, for any stream."""
        for stream, waiting in list(self.by_stream.items()):
            waiting.pop(block, None)
            if not waiting:
                del self.by_stream[stream]

    def take_all(self) -> list[PoolBlock]:
        """Return all waiting blocks in upstream's order, one entry per stream each waits for."""
        streams = sorted(self.by_stream, key=self._slot)
        waiting = [block for stream in streams for block in self.by_stream[stream]]
        self.by_stream.clear()
        return waiting

    def _slot(self, stream: int) -> int:
        hashed = (_CUDA_DEVICE_TYPE | stream * _HANDLE_STEP) * _FIBONACCI % 2**64
        return hashed >> (64 - self._table_bits)
