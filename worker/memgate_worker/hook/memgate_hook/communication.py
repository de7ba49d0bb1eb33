"""What a rank and the others exchange, as it is written down: communicators, and bytes by kind."""

from __future__ import annotations

import os
from typing import Any

from .phantom import Phantom

#: kinds of traffic, in the order of ``native/communicators.h``
KINDS = (
    *("all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast"),
    *("all_to_all", "gather", "scatter", "send", "receive"),
)

#: what comes before them for each communicator: ranks, its own rank, its device, its peers
_NUM_FIRST = 4

#: traffic of the first steps is not that of the others: groups and buckets are made
_NUM_FIRST_STEPS = 1


class Communication:
    """Follows the traffic of this process from step to step."""

    def __init__(self, phantom: Phantom) -> None:
        self._phantom = phantom
        #: as ``torch.distributed`` was told; None: it was not started, or for one process
        self.rank: int | None = None
        self.world_size = 1
        #: what is not a collective, but was taken for what this rank has
        self.has_assumed_objects = False
        #: ranks exchange parts of sizes that they tell each other
        self.has_unequal_parts = False
        #: another rank, which was not run before, has sent the host numbers
        self.has_unknown_numbers = False
        self._num_own_reads = 0
        self._num_steps = 0
        self._first: dict[str, int] = {}
        self._last: dict[str, int] = {}

    def note_rank(self, rank: int, world_size: int) -> None:
        """Note what the job's first process group is told."""
        if self.rank is None and world_size > 1:
            self.rank, self.world_size = rank, world_size

    def note_unknown(self, tensor: Any) -> None:
        """Note that a tensor has what another rank would have sent, and nobody knows.

        On a GPU it does harm only where the host reads it; on the host, nobody sees who reads.
        """
        if tensor.is_cuda:
            size_bytes = tensor.numel() * tensor.element_size()
            self._phantom.note_from_other_ranks(tensor.data_ptr(), size_bytes)
        else:
            self.has_unknown_numbers = True

    def is_known(self, tensor: Any) -> bool:
        """Tell whether nothing of a tensor is made up."""
        size_bytes = tensor.numel() * tensor.element_size()
        return not tensor.is_cuda or self._phantom.is_known(tensor.data_ptr(), size_bytes)

    def read(self, tensor: Any) -> tuple[Any, bool]:
        """Return what a small tensor holds, and whether it is known: others may have sent it.

        That we look at it does not count.
        """
        before = self._phantom.num_reads_from_other_ranks
        found = tensor.detach().reshape(-1).tolist()
        num_reads = self._phantom.num_reads_from_other_ranks - before
        self._num_own_reads += num_reads
        return found, num_reads == 0

    def note_step(self, num_steps: int) -> None:
        """Note how much has been exchanged when a training step has ended."""
        if num_steps < self._num_steps:
            return  # backward passes were taken for steps until an optimizer made one
        self._num_steps = num_steps
        self._last = self._bytes_by_kind()
        if num_steps <= _NUM_FIRST_STEPS:
            self._first = self._last

    def describe(self) -> dict[str, Any] | None:
        """Return what there is to know of this rank; None if it is the only one."""
        communicators = [self._communicator(number) for number in range(self._count())]
        if self.rank is None and not any(one["num_ranks"] > 1 for one in communicators):
            return None
        return {
            "rank": self.rank or 0,
            "world_size": self.world_size,
            "local_rank": _number("LOCAL_RANK"),
            "local_world_size": _number("LOCAL_WORLD_SIZE"),
            "communicators": communicators,
            "bytes_per_step": self._bytes_per_step(),
            "reads_from_other_ranks": self._reads_from_other_ranks(),
            "assumes_objects": self.has_assumed_objects,
        }

    def _reads_from_other_ranks(self) -> bool:
        num_reads = self._phantom.num_reads_from_other_ranks - self._num_own_reads
        return self.has_unequal_parts or self.has_unknown_numbers or num_reads > 0

    def _bytes_per_step(self) -> dict[str, int]:
        """Return the average of a step, without the first ones if there are others."""
        num_steps = self._num_steps - _NUM_FIRST_STEPS
        if num_steps < 1:
            return self._last
        return {
            kind: (total - self._first.get(kind, 0)) // num_steps
            for kind, total in self._last.items()
            if total > self._first.get(kind, 0)
        }

    def _bytes_by_kind(self) -> dict[str, int]:
        totals: dict[str, int] = {}
        for number in range(self._count()):
            one = self._communicator(number)
            if one["num_ranks"] > 1:
                for kind, (_, size_bytes) in one["traffic"].items():
                    totals[kind] = totals.get(kind, 0) + size_bytes
        return totals

    def _communicator(self, number: int) -> dict[str, Any]:
        numbers = self._phantom.communicator(number, _NUM_FIRST + 2 * len(KINDS))
        num_ranks, rank, device, num_peers = numbers[:_NUM_FIRST]
        calls, sizes = numbers[_NUM_FIRST::2], numbers[_NUM_FIRST + 1 :: 2]
        traffic = {kind: (count, size) for kind, count, size in zip(KINDS, calls, sizes) if count}
        return {
            "num_ranks": num_ranks,
            "rank": rank,
            "device": device,
            "num_peers": num_peers,
            "traffic": traffic,
        }

    def _count(self) -> int:
        return self._phantom.counters().num_communicators


def _number(variable: str) -> int | None:
    value = os.environ.get(variable, "")
    return int(value) if value.isdigit() else None
