"""What was seen of one rank of several -> reasons, each of which takes the plain admit away."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from memgate.report import Reason
from memgate.units import format_size
from memgate_worker.engines.messages import SeenRanks


def doubt_ranks(
    ranks: SeenRanks | None, other_devices: Sequence[tuple[int, int]]
) -> Iterator[Reason]:
    """Yield what of a rank's memory was not seen, or depends on ranks that were not run."""
    if ranks is not None and ranks.reads_from_other_ranks:
        yield Reason(
            code="SIZES_FROM_OTHER_RANKS",
            message=f"rank {ranks.rank} of {ranks.world_size} gets as much from other ranks as"
            " they decide (how many tokens go to which expert, say), or reads integers of ranks"
            " that were not run before it; that was taken to be what it has itself, and on GPUs a"
            " rank may get more",
        )
    if ranks is not None and ranks.assumes_objects:
        yield Reason(
            code="OBJECTS_FROM_OTHER_RANKS",
            message=f"rank {ranks.rank} of {ranks.world_size} is sent Python objects by another"
            " one, which was not run before it; they were taken to be what it has itself, and on"
            " GPUs may be others (sizes, say)",
        )
    for device, size_bytes in other_devices:
        yield Reason(
            code="OTHER_DEVICE_USED",
            message=f"the job also uses cuda:{device}, with {format_size(size_bytes)} at most and a"
            " CUDA context; if every rank does, that GPU holds all of them (torch.cuda.set_device"
            " comes first, and before init_process_group)",
        )
