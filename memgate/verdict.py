"""Stage 6: what a job needs, what a GPU has -> admit, reject or uncertain, with the reason.

Two things are not known exactly. The estimate of what the allocator needs is off a little, by a
share that was measured. And what a process holds besides its allocator's segments, the CUDA context
and the handles and kernels of libraries, is not the same on every machine: 200 to 700 MB have been
reported, and no table by GPU is public. Of a job that uses NCCL, what that takes is such a range,
too (``memgate.nccl``). So a job is admitted if it fits with the most of all, rejected if it does
not fit with the least, and uncertain between.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from memgate.decision import Decision
from memgate.explanation import Sizes, compare_sizes
from memgate.gpus import GpuSpec, GpuTarget
from memgate.nccl import NO_MEMORY, MemoryRange

#: CUDA context and libraries: the least, the usual and the most
MIN_CONTEXT_BYTES = 200 * 10**6
USUAL_CONTEXT_BYTES = 400 * 10**6
MAX_CONTEXT_BYTES = 700 * 10**6


#: by what share the estimate may be too low: of measured jobs that ran out of memory, 99 % had less
#: than the estimate plus this share (docs/accuracy.md, "The bound")
MARGIN = 0.013


_CODES = {
    Decision.ADMIT: "FITS",
    Decision.UNCERTAIN: "WITHIN_THE_MARGIN",
    Decision.REJECT: "DOES_NOT_FIT",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A decision and why."""

    decision: Decision
    #: stable, for machines
    code: str
    #: for people, with numbers
    message: str
    sizes: Sizes

    @property
    def headroom_bytes(self) -> int:
        """What is left above the bound; negative if it is not enough."""
        return self.sizes.available_bytes - self.sizes.needs_bytes


def left_for_segments(target: GpuTarget, communication_bytes: int = 0) -> int:
    """Return how much of a GPU a job's allocator can take, with the usual context."""
    taken = target.already_used_bytes + USUAL_CONTEXT_BYTES + communication_bytes
    return max(0, target.gpu.memory_bytes - taken)


def decide_by_sizes(sizes: Sizes) -> Decision:
    """Admit if the most fits, reject if not even the least does."""
    if sizes.needs_bytes <= sizes.available_bytes:
        return Decision.ADMIT
    return Decision.REJECT if sizes.least_bytes > sizes.available_bytes else Decision.UNCERTAIN


def find_sizes(
    segments_bytes: int, gpu: GpuSpec, already_used_bytes: int, communication: MemoryRange
) -> Sizes:
    """Return what is compared, of the arguments of ``decide``."""
    most = ceil(segments_bytes * (1 + MARGIN)) + MAX_CONTEXT_BYTES
    return Sizes(
        needs_bytes=most + communication.high_bytes,
        least_bytes=segments_bytes + MIN_CONTEXT_BYTES + communication.low_bytes,
        available_bytes=gpu.memory_bytes - already_used_bytes,
        used_bytes=already_used_bytes,
        has_nccl=communication.is_any,
    )


def decide(
    segments_bytes: int,
    gpu: GpuSpec,
    *,
    already_used_bytes: int = 0,
    communication: MemoryRange = NO_MEMORY,
) -> Verdict:
    """Compare the smallest memory for segments that suffices with what a GPU has left.

    ``communication`` is what NCCL takes of it.
    """
    sizes = find_sizes(segments_bytes, gpu, already_used_bytes, communication)
    decision = decide_by_sizes(sizes)
    return Verdict(
        decision=decision,
        code=_CODES[decision],
        message=compare_sizes(gpu.name, sizes),
        sizes=sizes,
    )
