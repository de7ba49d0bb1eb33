"""Stage 6: what a job needs, what a GPU has -> admit, reject or uncertain, with the reason.

Some things are not known exactly. The estimate of what the allocator needs is off a little, by a
share that was measured (``memgate.margins``), and by what cuDNN's workspaces may change where they
cannot be known (``memgate.workspaces``). What a process holds besides its allocator's segments, the
CUDA context and the handles and kernels of libraries, is not the same on every machine
(``memgate.context``). Of a job that uses NCCL, what that takes is such a range, too
(``memgate.nccl``). So a job is admitted if it fits with the most of all, rejected if it does not
fit with the least, and uncertain between.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from memgate.calibration import Bounds, find_bounds
from memgate.context import USUAL_CONTEXT_BYTES
from memgate.decision import Decision
from memgate.explanation import Sizes, compare_sizes
from memgate.gpus import GpuSpec, GpuTarget
from memgate.margins import Family
from memgate.nccl import NO_MEMORY, MemoryRange

#: by what share the estimate may be too high: jobs with convolutions lie otherwise in pieces than
#: predicted, and live in a little less (docs/accuracy.md, "The bound")
BELOW = {Family.CONVOLUTION: 0.01}

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
    bounds: Bounds

    @property
    def headroom_bytes(self) -> int:
        """What is left above the bound; negative if it is not enough."""
        return self.sizes.available_bytes - self.sizes.needs_bytes


def left_for_segments(
    target: GpuTarget, communication_bytes: int = 0, context_bytes: int = USUAL_CONTEXT_BYTES
) -> int:
    """Return how much of a GPU a job's allocator can take, with the usual context."""
    taken = target.already_used_bytes + context_bytes + communication_bytes
    return max(0, target.gpu.memory_bytes - taken)


def decide_by_sizes(sizes: Sizes) -> Decision:
    """Admit if the most fits, reject if not even the least does."""
    if sizes.needs_bytes <= sizes.available_bytes:
        return Decision.ADMIT
    return Decision.REJECT if sizes.least_bytes > sizes.available_bytes else Decision.UNCERTAIN


def find_sizes(
    segments_bytes: int,
    gpu: GpuSpec,
    already_used_bytes: int,
    communication: MemoryRange,
    bounds: Bounds,
) -> Sizes:
    """Return what is compared, of the arguments of ``decide``."""
    context = bounds.context
    most = bound_segments(segments_bytes, bounds) + context.high_bytes
    least = least_segments(segments_bytes, bounds) + context.low_bytes
    return Sizes(
        needs_bytes=most + communication.high_bytes,
        least_bytes=least + communication.low_bytes,
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
    bounds: Bounds | None = None,
) -> Verdict:
    """Compare the smallest memory for segments that suffices with what a GPU has left.

    ``communication`` is what NCCL takes of it; ``bounds`` say how far that may be off, for a job
    of which nothing is known unless they are given.
    """
    bounds = bounds or find_bounds(gpu)
    sizes = find_sizes(segments_bytes, gpu, already_used_bytes, communication, bounds)
    decision = decide_by_sizes(sizes)
    return Verdict(
        decision=decision,
        code=_CODES[decision],
        message=compare_sizes(gpu.name, sizes),
        sizes=sizes,
        bounds=bounds,
    )


def bound_segments(segments_bytes: int, bounds: Bounds) -> int:
    """Return the most that an allocator may need if this was estimated."""
    return ceil((segments_bytes + bounds.workspaces.more_bytes) * (1 + bounds.margin.ratio))


def least_segments(segments_bytes: int, bounds: Bounds) -> int:
    """Return the least that it may need."""
    below = BELOW.get(bounds.family, 0.0)
    return ceil((segments_bytes - bounds.workspaces.less_bytes) * (1 - below))
