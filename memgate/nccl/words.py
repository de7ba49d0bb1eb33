"""What NCCL takes, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from memgate.gpus import GpuSpec
from memgate.nccl.parts import Communicator, MemoryRange, NcclUse
from memgate.report import Reason
from memgate.units import format_size

NCCL_MEMORY = "NCCL_MEMORY"
NCCL_ON_MIG = "NCCL_ON_MIG"

#: why a job of several ranks is not admitted on a part of a GPU
NO_MIG = (
    "the NCCL that PyTorch comes with does not support MIG, and this job's ranks communicate by"
    " NCCL, so that it may fit and not start; ask about a whole GPU"
)


def tell_communication(used: NcclUse, nccl: MemoryRange) -> Iterator[Reason]:
    """Say what NCCL is taken to need, and for what; nothing if it is not used."""
    if not nccl.is_any:
        return
    low, expected, high = map(format_size, nccl)
    version = ".".join(map(str, used.version))
    yield Reason(
        code=NCCL_MEMORY,
        message=f"NCCL {version} takes about {expected} of the GPU for itself, outside PyTorch's"
        f" allocator, and between {low} and {high}, depending on the machine:"
        f" {_name_all(used.communicators)}",
    )


def doubt_mig(used: NcclUse, gpu: GpuSpec) -> list[Reason]:
    """Return why a job is not admitted on a part of a GPU, if its ranks communicate by NCCL."""
    if not gpu.is_part or all(one.num_ranks == 1 for one in used.communicators):
        return []
    return [Reason(code=NCCL_ON_MIG, message=f"{gpu.name} is a part of a GPU (MIG): {NO_MIG}")]


def _name_all(communicators: tuple[Communicator, ...]) -> str:
    """Name them by size: ``2 communicators, 1 of 64 ranks with 8 on a node, 1 of 8 ranks``."""
    counts = Counter(map(_name, communicators))
    number = len(communicators)
    named = [f"{count} of {name}" if number > 1 else f"of {name}" for name, count in counts.items()]
    noun = "communicator" if number == 1 else "communicators,"
    return f"{number} {noun} {', '.join(named)}"


def _name(one: Communicator) -> str:
    if one.num_ranks == 1:
        return "one rank"
    where = "on one node" if one.is_on_one_node else f"with {one.ranks_on_node} on a node"
    peers = one.local_peers + one.remote_peers
    sends = f", which sends to {peers} of them directly" if peers else ""
    return f"{one.num_ranks} ranks {where}{sends}"
