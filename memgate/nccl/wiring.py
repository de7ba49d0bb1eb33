"""How many channels NCCL makes between GPUs of a kind, and whether their buffers are on the GPU.

NCCL looks at the wiring of the machine, which nobody tells us: each figure is a range. The sources
are in ``docs/nccl.md``.
"""

from __future__ import annotations

from typing import NamedTuple

from memgate.gpus import GpuSpec

#: of NVLS, reductions in the NVLink switch
NVLS_CHUNK_BYTES = 128 * 1024


class Wiring(NamedTuple):
    """What NCCL finds on a machine."""

    channels: int
    #: for transfers between two ranks
    peer_channels: int
    #: buffers between GPUs of a node are on the GPU, not in the host's memory
    on_gpu: bool = True
    #: as are those for the network (GPUDirect)
    net_on_gpu: bool = True
    #: the driver lets NCCL allocate with cuMem
    has_cumem: bool = True
    nvls_channels: int = 0
    nvls_chunk_bytes: int = NVLS_CHUNK_BYTES


class Wirings(NamedTuple):
    """What takes the least, what is usual, and what takes the most."""

    low: Wiring
    expected: Wiring
    high: Wiring


_FEWEST = Wiring(8, 8, net_on_gpu=False, has_cumem=False)
_VOLTA = Wirings(_FEWEST._replace(channels=4, peer_channels=2), Wiring(12, 8), Wiring(24, 16))
_AMPERE = Wirings(_FEWEST, Wiring(24, 32), Wiring(32, 32))
_HOPPER = Wirings(_FEWEST, Wiring(24, 32, nvls_channels=16), Wiring(32, 32, nvls_channels=16))
_BLACKWELL = Wirings(
    _FEWEST,
    Wiring(32, 32, nvls_channels=24),
    Wiring(64, 64, nvls_channels=32, nvls_chunk_bytes=2 * NVLS_CHUNK_BYTES),
)
#: the least: through the host's memory; the most: two cards with a bridge between them
_PCIE = Wirings(
    Wiring(1, 1, on_gpu=False, net_on_gpu=False, has_cumem=False),
    Wiring(4, 2, net_on_gpu=False),
    Wiring(16, 8),
)


def has_nvlink_switch(gpu: GpuSpec) -> bool:
    """Say whether GPUs of a kind come in machines that connect all of them by NVLink.

    Judged by the name of the product: cards for a PCIe slot, and parts of a GPU, do not.
    """
    product = gpu.product.upper()
    if gpu.is_part or any(word in product for word in _SLOT_WORDS):
        return False
    return any(word in product for word in _SWITCH_WORDS)


_SLOT_WORDS = ("PCIE", "NVL", "GEFORCE", "RTX", "TITAN", "A30")
_SWITCH_WORDS = ("SXM", "HBM3", "H20", "H800", "GH200", "B200", "B300")

#: of chips that come on boards with NVLink as well as on cards
_MAY_HAVE_NVLINK = {(7, 0), (8, 0), (9, 0), (10, 0), (10, 3)}


def find_wirings(gpu: GpuSpec) -> Wirings:
    """Return what NCCL may find on machines with GPUs of a kind."""
    if not has_nvlink_switch(gpu) and not _may_have_nvlink(gpu):
        return _PCIE
    major = gpu.compute_capability[0]
    by_nvlink = {7: _VOLTA, 8: _AMPERE, 9: _HOPPER}.get(major, _BLACKWELL)
    return by_nvlink if has_nvlink_switch(gpu) else by_nvlink._replace(low=_PCIE.low)


def _may_have_nvlink(gpu: GpuSpec) -> bool:
    """Say whether nothing is known but the chip: of a GPU that the caller described."""
    is_card = gpu.is_part or any(word in gpu.product.upper() for word in _SLOT_WORDS)
    return gpu.compute_capability in _MAY_HAVE_NVLINK and not is_card
