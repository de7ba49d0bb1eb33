"""What is seen of process groups says what NCCL is used for."""

from __future__ import annotations

from memgate.gpus import find_gpu
from memgate.nccl import NO_COMMUNICATION, Communicator, NcclSettings, estimate_nccl
from memgate_worker.engines.messages import SeenCommunicator, SeenRanks
from memgate_worker.engines.phantom.communication import ALONE, find_communication

TORCH = {"torch": "2.6.0+cu124"}


def _seen(num_ranks: int, num_peers: int = 0, *kinds: str) -> SeenCommunicator:
    traffic = dict.fromkeys(kinds, (1, 1024))
    return SeenCommunicator(
        num_ranks=num_ranks, rank=0, device=0, num_peers=num_peers, traffic=traffic
    )


def _ranks(
    world_size: int, local_world_size: int | None, *communicators: SeenCommunicator
) -> SeenRanks:
    return SeenRanks(
        rank=0,
        world_size=world_size,
        local_rank=0,
        local_world_size=local_world_size,
        communicators=list(communicators),
        bytes_per_step={},
        reads_from_other_ranks=False,
        assumes_objects=False,
    )


def test_a_job_without_nccl_uses_none() -> None:
    """Nothing is counted."""
    assert find_communication(None, 0, TORCH, {}) == NO_COMMUNICATION
    assert find_communication(_ranks(8, 8), 0, TORCH, {}) == NO_COMMUNICATION


def test_a_single_process_has_communicators_of_its_own() -> None:
    """As under torchrun with one process; its torch and its environment count."""
    found = find_communication(None, 2, TORCH, {"NCCL_MAX_NCHANNELS": "4"})

    assert found.communicators == (ALONE, ALONE)
    assert (found.version, found.settings) == ((2, 21), NcclSettings(max_channels=4))


def test_all_ranks_together_lie_as_the_launcher_said() -> None:
    """Eight on each of four nodes; sends are to peers, and no collective."""
    used = _seen(32, 31, "all_reduce", "all_to_all", "send")
    (found,) = find_communication(_ranks(32, 8, used), 1, TORCH, {}).communicators

    assert found == Communicator(
        num_ranks=32,
        ranks_on_node=8,
        local_peers=7,
        remote_peers=24,
        collectives=frozenset({"all_reduce"}),
    )


def test_a_smaller_group_may_be_one_of_each_node() -> None:
    """Then the range has both; within one node there is nothing to doubt."""
    across = find_communication(_ranks(32, 8, _seen(4, 0, "all_gather")), 1, TORCH, {})
    within = find_communication(_ranks(8, 8, _seen(4, 0, "all_gather")), 1, TORCH, {})

    assert not across.communicators[0].is_layout_known
    assert within.communicators[0].is_layout_known
    most, least = (estimate_nccl(used, find_gpu("a100-80")).high_bytes for used in (across, within))
    assert most > least
