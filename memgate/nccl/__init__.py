"""What NCCL takes of a GPU for itself, outside PyTorch's allocator.

``parts`` has what is asked and answered, ``wiring`` what depends on the machine, ``model`` the
arithmetic. The sources of all three are in ``docs/nccl.md``.
"""

from memgate.nccl.model import estimate_nccl
from memgate.nccl.parts import (
    NO_COMMUNICATION,
    NO_MEMORY,
    Communicator,
    MemoryRange,
    NcclSettings,
    NcclUse,
)
from memgate.nccl.versions import nccl_version

__all__ = [
    "NO_COMMUNICATION",
    "NO_MEMORY",
    "Communicator",
    "MemoryRange",
    "NcclSettings",
    "NcclUse",
    "estimate_nccl",
    "nccl_version",
]
