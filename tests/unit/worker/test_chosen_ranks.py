"""Which ranks of a job are run, and what they are told."""

from __future__ import annotations

from memgate.jobspec import DistributedSpec, Strategy
from memgate_worker.engines.phantom.chosen_ranks import describe_rank, find_ranks


def test_the_first_is_run_and_says_who_differs() -> None:
    """Of a pipeline, every stage."""
    assert find_ranks(DistributedSpec(strategy=Strategy.DDP, world_size=8)) == [0]
    assert find_ranks(DistributedSpec(strategy=Strategy.FSDP2, world_size=1)) == [0]
    assert find_ranks(DistributedSpec(strategy=Strategy.PP, world_size=4)) == [0, 1, 2, 3]


def test_a_rank_is_told_what_torchrun_tells() -> None:
    """Its place in the world, and on its machine; each sees its own GPU alone."""
    told = describe_rank(DistributedSpec(strategy=Strategy.DDP, world_size=32), 17)

    assert (told["RANK"], told["WORLD_SIZE"], told["LOCAL_RANK"]) == ("17", "32", "0")
    assert (told["LOCAL_WORLD_SIZE"], told["GROUP_RANK"], told["NODE_RANK"]) == ("8", "2", "2")
