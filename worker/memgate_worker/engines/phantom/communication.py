"""What a recording says about process groups of NCCL -> what NCCL is used for."""

from __future__ import annotations

from collections.abc import Mapping

from memgate.nccl import (
    NO_COMMUNICATION,
    Communicator,
    NcclSettings,
    NcclUse,
    nccl_version,
)
from memgate_worker.engines.messages import SeenCommunicator, SeenRanks

#: one that has no other rank
ALONE = Communicator(num_ranks=1, ranks_on_node=1)

#: what runs on rings and trees; other kinds are made of sends, to peers that are counted
_COLLECTIVES = frozenset({"all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast"})


def find_communication(
    ranks: SeenRanks | None,
    num_communicators: int,
    versions: Mapping[str, str],
    variables: Mapping[str, str],
) -> NcclUse:
    """Return what a process uses NCCL for.

    Args:
        ranks: what was seen of one rank of several; None: there is only one.
        num_communicators: that it made.
        versions: of its libraries, by name.
        variables: of its environment, those of NCCL.
    """
    if ranks is None:
        found = (ALONE,) * num_communicators
    else:
        found = tuple(_describe(one, ranks) for one in ranks.communicators)
    if not found:
        return NO_COMMUNICATION
    return NcclUse(
        communicators=found,
        version=nccl_version(versions.get("torch", "")),
        settings=NcclSettings.of(variables),
    )


def _describe(seen: SeenCommunicator, ranks: SeenRanks) -> Communicator:
    """Tell how many of a communicator's ranks are on this node, as far as that is known.

    A smaller group than all may be of GPUs of a node, or one of each.
    """
    node_size = ranks.local_world_size or ranks.world_size
    on_node = max(1, min(seen.num_ranks, node_size))
    is_everybody = seen.num_ranks == ranks.world_size
    local_peers = min(seen.num_peers, on_node - 1)
    return Communicator(
        num_ranks=seen.num_ranks,
        ranks_on_node=on_node,
        local_peers=local_peers,
        remote_peers=seen.num_peers - local_peers if on_node < seen.num_ranks else 0,
        is_layout_known=is_everybody or node_size >= ranks.world_size,
        collectives=_COLLECTIVES.intersection(seen.traffic),
    )
