"""Which ranks of a distributed job are run, and what each is told about its place.

Every rank runs the same code. What a rank allocates depends on its number in few ways, and one of
each kind is run: the first; the last, where sizes do not divide evenly, so the first ranks have
more and the last has less; every stage of a pipeline; and, of ``ZeroRedundancyOptimizer``, the rank
that was given the most. The first rank says itself whether others were given something else.
"""

from __future__ import annotations

from memgate.jobspec import DistributedSpec, Strategy

#: nothing listens there: the other ranks do not exist
_MASTER = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


def find_ranks(spec: DistributedSpec) -> list[int]:
    """Return the ranks that are run, as far as the spec alone decides it; the first is 0."""
    if spec.strategy is Strategy.PP:
        return list(range(spec.world_size))
    return [0]


def describe_rank(spec: DistributedSpec, rank: int) -> dict[str, str]:
    """Return what ``torchrun`` would tell a rank; each sees one GPU, its own."""
    node = rank // spec.node_size
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(spec.world_size),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": str(spec.node_size),
        "GROUP_RANK": str(node),
        "NODE_RANK": str(node),
        "GROUP_WORLD_SIZE": str(spec.num_nodes),
        **_MASTER,
    }
