"""Notes of a run on the phantom -> reasons: where other kernels ran than would on a GPU."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from memgate.report import Reason

#: the note of a run in which inductor chose kernels by their times
KERNELS_TIMED = "kernels_timed"


def doubt_timed_kernels(notes: Collection[str]) -> Iterator[Reason]:
    """Yield that kernels were chosen without knowing their times."""
    if KERNELS_TIMED in notes:
        yield Reason(
            code="KERNELS_NOT_TIMED",
            message="torch.compile chooses among kernels by their times here (max-autotune), and"
            " nothing can be timed on a GPU that is not there; PyTorch's own kernels were taken,"
            " and with others the job takes other memory",
        )
