"""What a process uses NCCL for, and the GPU -> what NCCL takes of it for itself.

NCCL asks the driver, not PyTorch's allocator, so none of this is in a timeline. The arithmetic is
that of NCCL's source; what depends on a machine's wiring (channels, whether GPUs reach each other
and the network directly) is a range. ``docs/nccl.md`` has the sources, file by file, and how the
figures compare with what others have measured.
"""

from __future__ import annotations

from dataclasses import replace

from memgate.gpus import GpuSpec
from memgate.nccl.parts import (
    NO_MEMORY,
    Communicator,
    MemoryRange,
    NcclSettings,
    NcclUse,
)
from memgate.nccl.wiring import Wiring, find_wirings
from memgate.units import MIB

#: the first that connects an algorithm only when a collective first needs it
LAZY_CONNECTIONS = (2, 22)

#: the first that allocates with cuMem by default: nothing is smaller than a page of it then
CUMEM_BY_DEFAULT = (2, 19)

#: the first that has NVLS, reductions in the NVLink switch
NVLS_BY_DEFAULT = (2, 18)

#: the most channels that there are, and the first version that has twice as many
MAX_CHANNELS = 32
DOUBLED_CHANNELS = (2, 25)

#: by protocol: lines x threads x steps x bytes for LL, elements x threads x steps x 8 for LL128
LL_BYTES = 8 * 512 * 8 * 16
LL128_BYTES = 120 * 640 * 8 * 8
SIMPLE_BYTES = 4 * MIB

#: buffers that other processes map, and everything of cuMem, come in pages of this size
_PAGE_BYTES = 2 * MIB

#: what stands before a connection's buffers
_HEADER_BYTES = 8192

#: steps of a buffer for point-to-point transfers over the network, shared by all peers
_SHARED_STEPS = 16
_NET_CHUNK_BYTES = 128 * 1024

#: arrays on the device that a channel has, each a page with cuMem
_ARRAYS_PER_CHANNEL = 3

#: a tree has a parent and up to two children beside the ring's neighbours, on other nodes
_TREE_NEIGHBOURS = 3

#: of NVLS: steps of a buffer, one to reduce and one to broadcast, each of a chunk
_NVLS_STEPS = 8
_NVLS_BUFFERS = 2

#: collectives that trees and NVLS serve; the others run on rings
_REDUCING_EVERYWHERE = frozenset({"all_reduce"})

#: kernels of NCCL that are loaded, and what the driver keeps for them, once for a process. The most
#: is what is left of public runs on two GPUs when everything that the source explains is taken off
PROCESS_MEMORY = MemoryRange(64 * MIB, 256 * MIB, 1024 * MIB)


#: what a process of its own is taken to load at most: it only copies
_ALONE_MEMORY = MemoryRange(0, 0, 256 * MIB)


def estimate_nccl(used: NcclUse, gpu: GpuSpec) -> MemoryRange:
    """Say what NCCL takes of a GPU besides PyTorch's allocator; nothing if it is not used."""
    if not used.communicators:
        return NO_MEMORY
    is_alone = all(one.num_ranks == 1 for one in used.communicators)
    total = _ALONE_MEMORY if is_alone else PROCESS_MEMORY
    for one in used.communicators:
        total += _alone(used.version) if one.num_ranks == 1 else _together(one, used, gpu)
    return total


def _alone(version: tuple[int, int]) -> MemoryRange:
    """Return what a communicator of one rank takes: no buffers, but every channel there is."""
    channels = MAX_CHANNELS * (2 if version >= DOUBLED_CHANNELS else 1)
    arrays = channels * _ARRAYS_PER_CHANNEL * _PAGE_BYTES if version >= CUMEM_BY_DEFAULT else 0
    return MemoryRange(0, arrays, arrays + 2 * _PAGE_BYTES)


def _together(one: Communicator, used: NcclUse, gpu: GpuSpec) -> MemoryRange:
    low, expected, high = (
        _limit(wiring, used.settings, used.version) for wiring in find_wirings(gpu)
    )
    layouts = [one] if one.is_layout_known else [one, _one_of_each_node(one)]
    return MemoryRange(
        min(_communicator_bytes(_with_rings_only(layout), low, used) for layout in layouts),
        _communicator_bytes(one, expected, used),
        max(_communicator_bytes(_with_everything(layout), high, used) for layout in layouts),
    )


def _one_of_each_node(one: Communicator) -> Communicator:
    """Return the communicator as if every rank of it were on a node of its own."""
    remote_peers = one.local_peers + one.remote_peers
    return replace(one, ranks_on_node=1, local_peers=0, remote_peers=remote_peers)


def _with_rings_only(one: Communicator) -> Communicator:
    """Return the communicator as if collectives that are known of ran on rings, and no others."""
    return replace(one, collectives=frozenset({"all_gather"}) if one.collectives else frozenset())


def _with_everything(one: Communicator) -> Communicator:
    """Return the communicator as if it were used for everything, and sent to one rank at least."""
    if one.ranks_on_node > 1:
        return replace(one, collectives=None, local_peers=max(1, one.local_peers))
    return replace(one, collectives=None, remote_peers=max(1, one.remote_peers))


def _limit(wiring: Wiring, settings: NcclSettings, version: tuple[int, int]) -> Wiring:
    """Apply what the environment says about channels, the most first, as NCCL does."""
    channels = wiring.channels
    if settings.max_channels is not None:
        channels = min(channels, max(1, settings.max_channels))
    channels = max(channels, settings.min_channels or 0)
    has_nvls = version >= NVLS_BY_DEFAULT and settings.uses_nvls is not False
    return wiring._replace(
        channels=channels,
        # NCCL_MAX_NCHANNELS holds for these, too: there are never more of them than a power of two
        # above the channels
        peer_channels=min(wiring.peer_channels, 1 << (channels - 1).bit_length()),
        nvls_channels=wiring.nvls_channels if has_nvls else 0,
    )


def _communicator_bytes(one: Communicator, wiring: Wiring, used: NcclUse) -> int:
    given = used.settings.buffer_bytes
    simple = SIMPLE_BYTES if given is None else given
    # before that version, everything is connected at once; and what is not known may be anything
    is_all_used = used.version < LAZY_CONNECTIONS or one.collectives is None
    total = _arrays_bytes(wiring, used.version) + _peers_bytes(one, wiring, simple)
    if is_all_used or one.collectives:
        total += wiring.channels * _ring_bytes(one, wiring, simple)
    if is_all_used or _REDUCING_EVERYWHERE & (one.collectives or frozenset()):
        total += wiring.channels * _tree_bytes(one, wiring, simple) + _nvls_bytes(one, wiring)
    return total


def _arrays_bytes(wiring: Wiring, version: tuple[int, int]) -> int:
    """What describes the channels on the device."""
    if version < CUMEM_BY_DEFAULT or not wiring.has_cumem:
        return 2 * _PAGE_BYTES
    return max(wiring.channels, wiring.peer_channels) * _ARRAYS_PER_CHANNEL * _PAGE_BYTES


def _local_connection(wiring: Wiring, simple: int) -> int:
    """A neighbour on the node to send to, and one to receive from: a channel's buffers for both."""
    if not wiring.on_gpu:
        return 0
    receiving = _pages(_HEADER_BYTES + LL_BYTES + LL128_BYTES + simple)
    return receiving + _pages(_HEADER_BYTES)


def _net_connection(wiring: Wiring, simple: int) -> int:
    """The same over the network; what is sent by LL is in the host's memory."""
    if not wiring.net_on_gpu:
        return 0
    return _pages(LL_BYTES + LL128_BYTES + simple) + _pages(LL128_BYTES + simple)


def _ring_bytes(one: Communicator, wiring: Wiring, simple: int) -> int:
    """For a channel: a neighbour on each side; one GPU of a node reaches out, one is reached."""
    local, net = _local_connection(wiring, simple), _net_connection(wiring, simple)
    if one.is_on_one_node:
        return local
    if one.ranks_on_node == 1:
        return net
    return local + max(0, net - local) // one.ranks_on_node


def _tree_bytes(one: Communicator, wiring: Wiring, simple: int) -> int:
    """For a channel, beyond the ring: the way back along the chain of a node, and between nodes."""
    local, net = _local_connection(wiring, simple), _net_connection(wiring, simple)
    within = local if one.ranks_on_node > 2 else 0
    between = 0 if one.is_on_one_node else _TREE_NEIGHBOURS * net // one.ranks_on_node
    return within + between


def _nvls_bytes(one: Communicator, wiring: Wiring) -> int:
    """For reductions in the switch, of more than two GPUs on a node: each has all their buffers."""
    if one.ranks_on_node <= 2:
        return 0
    buffer = wiring.nvls_chunk_bytes * _NVLS_STEPS
    return wiring.nvls_channels * _NVLS_BUFFERS * buffer * one.ranks_on_node


def _peers_bytes(one: Communicator, wiring: Wiring, simple: int) -> int:
    """For transfers between two ranks: own buffers for each on the node, shared ones elsewhere."""
    total = one.local_peers * wiring.peer_channels * _local_connection(wiring, simple)
    if one.remote_peers and wiring.net_on_gpu:
        total += 2 * wiring.peer_channels * _SHARED_STEPS * _NET_CHUNK_BYTES
    return total


def _pages(size_bytes: int) -> int:
    return -(-size_bytes // _PAGE_BYTES) * _PAGE_BYTES
