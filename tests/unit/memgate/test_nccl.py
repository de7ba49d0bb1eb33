"""What NCCL takes of a GPU for itself."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memgate.gpus import CATALOGUE, GpuSpec, find_gpu
from memgate.nccl import (
    NO_COMMUNICATION,
    NO_MEMORY,
    Communicator,
    MemoryRange,
    NcclSettings,
    NcclUse,
    estimate_nccl,
    nccl_version,
)
from memgate.nccl.model import PROCESS_MEMORY
from memgate.nccl.wiring import has_nvlink_switch
from memgate.nccl.words import tell_communication
from memgate.units import MIB

NODE = Communicator(num_ranks=8, ranks_on_node=8)


def _estimate(
    *communicators: Communicator, gpu: str = "a100-80", version: tuple[int, int] = (2, 27)
) -> MemoryRange:
    used = NcclUse(communicators=communicators, version=version)
    return estimate_nccl(used, find_gpu(gpu))


def _beyond_the_process(found: MemoryRange) -> list[int]:
    return [mine - common for mine, common in zip(found, PROCESS_MEMORY, strict=True)]


def test_a_job_without_nccl_takes_nothing() -> None:
    """Nothing changes for jobs on one GPU."""
    assert estimate_nccl(NO_COMMUNICATION, find_gpu("h100-80")) == NO_MEMORY
    assert list(tell_communication(NO_COMMUNICATION, NO_MEMORY)) == []


def test_a_channel_of_a_ring_has_twelve_mib() -> None:
    """10 MiB to receive with three protocols, 2 MiB to send, each in whole pages (NCCL #1685)."""
    pair = Communicator(num_ranks=2, ranks_on_node=2)
    found = _estimate(pair, version=(2, 18))

    # 24 channels; what describes them; on two GPUs a tree has no other neighbours than the ring
    assert _beyond_the_process(found)[1] == 24 * 12 * MIB + 4 * MIB


def test_all_to_all_connects_every_pair_by_every_channel() -> None:
    """Measured on eight H100: 3.28 GB more after the first all_to_all (NCCL #1685)."""
    used = replace(NODE, collectives=frozenset(), local_peers=7)
    found = _beyond_the_process(_estimate(used, gpu="h100-80"))

    assert found[1] == 7 * 32 * 12 * MIB + 32 * 3 * 2 * MIB
    assert found[0] < 3.28e9 < found[2]
    assert found[1] == pytest.approx(3.28e9, rel=0.1)


@pytest.mark.parametrize(("num_ranks", "measured_mib"), [(2, 544), (4, 688)])
def test_what_was_measured_for_a_communicator_is_within(num_ranks: int, measured_mib: int) -> None:
    """On four A100 with NVLink, each more communicator took so much (NCCL #964)."""
    found = _estimate(Communicator(num_ranks=num_ranks, ranks_on_node=num_ranks), version=(2, 18))
    low, _, high = _beyond_the_process(found)

    assert low < measured_mib * MIB < high


def test_what_was_left_on_two_a100_is_within() -> None:
    """2.3 to 2.6 GB more than segments and context, in public runs of PyTorch 2.4."""
    found = _estimate(Communicator(num_ranks=2, ranks_on_node=2), version=nccl_version("2.4.1"))

    # the bound also has 0.3 GB for a larger context, and 1.3 % of the 40 GB of segments
    assert found.high_bytes + 300e6 + 0.013 * 40e9 > 2.6e9


def test_one_communicator_more_takes_more_and_the_process_only_once() -> None:
    """Reported: 1.6 GB with one, 6 GB with three or more, on many nodes (NCCL #864)."""
    many = Communicator(num_ranks=64, ranks_on_node=8)
    one, three = (_estimate(*[many] * number, version=(2, 18)) for number in (1, 3))

    assert _beyond_the_process(three) == [3 * each for each in _beyond_the_process(one)]
    assert one.low_bytes < 1.6e9 < one.high_bytes


def test_from_2_22_on_only_what_is_used_is_connected() -> None:
    """Before, trees and NVLS are there even if a job gathers only."""
    gathers = replace(NODE, collectives=frozenset({"all_gather", "reduce_scatter"}))
    lazy, eager = (
        _estimate(gathers, gpu="h100-80", version=version) for version in ((2, 22), (2, 21))
    )

    trees, switch = 24 * 12 * MIB, 16 * 2 * MIB * 8
    assert eager.expected_bytes - lazy.expected_bytes == trees + switch


def test_reductions_in_the_switch_need_hopper_and_more_than_two_gpus() -> None:
    """NVLS: 16 channels, two buffers of 1 MiB for each GPU of the node."""
    four = Communicator(num_ranks=4, ranks_on_node=4)
    assert _estimate(four, gpu="h100-80").expected_bytes - _estimate(four).expected_bytes == (
        16 * 2 * MIB * 4
    )
    two = Communicator(num_ranks=2, ranks_on_node=2)
    assert _estimate(two, gpu="h100-80") == _estimate(two)


def test_more_nodes_take_more_until_there_are_two() -> None:
    """A ring has two neighbours however long it is (a maintainer in NCCL #986)."""
    one, two, many = (
        _estimate(Communicator(num_ranks=8 * nodes, ranks_on_node=8)) for nodes in (1, 2, 64)
    )

    assert one.expected_bytes < two.expected_bytes
    assert two == many


def test_buffers_between_cards_may_be_in_the_hosts_memory() -> None:
    """Without NVLink the least is what is loaded, and there are few channels."""
    assert has_nvlink_switch(find_gpu("a100-80"))
    found = _estimate(NODE, gpu="l40s")

    assert found.low_bytes - PROCESS_MEMORY.low_bytes <= 4 * MIB
    assert found.expected_bytes < _estimate(NODE).expected_bytes


@pytest.mark.parametrize(("version", "channels"), [((2, 21), 32), ((2, 27), 64)])
def test_a_communicator_of_one_rank_has_channels_but_no_buffers(
    version: tuple[int, int], channels: int
) -> None:
    """Three arrays for each channel, a page of cuMem each."""
    found = _estimate(Communicator(num_ranks=1, ranks_on_node=1), gpu="t4", version=version)

    assert (found.low_bytes, found.expected_bytes) == (0, channels * 3 * 2 * MIB)


def test_the_jobs_environment_counts() -> None:
    """NCCL_MAX_NCHANNELS, NCCL_BUFFSIZE and NCCL_NVLS_ENABLE change what is taken."""
    environment = {"NCCL_MAX_NCHANNELS": "4", "NCCL_BUFFSIZE": "1048576", "NCCL_NVLS_ENABLE": "0"}
    settings = NcclSettings.of(environment | {"NCCL_MIN_NCHANNELS": "many"})
    used = NcclUse(communicators=(NODE,), settings=settings)
    found = estimate_nccl(used, find_gpu("h100-80"))

    # a ring and a tree of four channels: 8 MiB to receive now, 2 MiB to send
    assert _beyond_the_process(found)[1] == 2 * 4 * 10 * MIB + 4 * 3 * 2 * MIB


@given(
    gpu=st.sampled_from(sorted(CATALOGUE.values(), key=lambda gpu: gpu.name)),
    on_node=st.integers(1, 8),
    num_nodes=st.integers(1, 64),
    peers=st.integers(0, 7),
    collectives=st.none() | st.frozensets(st.sampled_from(["all_reduce", "all_gather"])),
    minor=st.integers(10, 32),
)
def test_the_range_is_in_order(
    *,
    gpu: GpuSpec,
    on_node: int,
    num_nodes: int,
    peers: int,
    collectives: frozenset[str] | None,
    minor: int,
) -> None:
    """Low, expected and high never cross, whatever is asked."""
    one = Communicator(
        num_ranks=on_node * num_nodes,
        ranks_on_node=on_node,
        local_peers=min(peers, on_node - 1),
        remote_peers=peers if num_nodes > 1 else 0,
        collectives=collectives,
    )
    low, expected, high = estimate_nccl(NcclUse(communicators=(one,), version=(2, minor)), gpu)

    assert 0 <= low <= expected <= high


@pytest.mark.parametrize(
    ("torch", "version"),
    [
        ("2.4.1+cu121", (2, 20)),
        ("2.7.0", (2, 26)),
        ("2.14.1", (2, 27)),
        ("1.13.1", (2, 14)),
        ("", (2, 27)),
    ],
)
def test_a_pytorch_brings_its_nccl(torch: str, version: tuple[int, int]) -> None:
    """By its wheels; a newer one counts as the newest that is known."""
    assert nccl_version(torch) == version


def test_the_figure_and_its_range_are_told() -> None:
    """With what it is for."""
    two = (Communicator(num_ranks=64, ranks_on_node=8), NODE)
    used = NcclUse(communicators=two)
    (said,) = tell_communication(used, MemoryRange(64 * MIB, 1024 * MIB, 2048 * MIB))

    assert said.code == "NCCL_MEMORY"
    assert said.message == (
        "NCCL 2.27 takes about 1024.00 MiB of the GPU for itself, outside PyTorch's allocator, and"
        " between 64.00 MiB and 2.00 GiB, depending on the machine: 2 communicators, 1 of 64 ranks"
        " with 8 on a node, 1 of 8 ranks on one node"
    )


def test_a_group_of_one_is_named_as_such() -> None:
    """It sends nothing, and NCCL takes what it takes for a process."""
    used = NcclUse(communicators=(Communicator(num_ranks=1, ranks_on_node=1),))
    (said,) = tell_communication(used, MemoryRange(0, MIB, 2 * MIB))

    assert said.message.endswith("depending on the machine: 1 communicator of one rank")
