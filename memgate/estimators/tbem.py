"""TBEM: test the job at small sizes, and extrapolate in the batch size.

Liu et al., "TBEM: Testing-Based GPU-Memory Consumption Estimation for Deep Learning" (IEEE Access
2022). The source tests on a GPU; here the phantom stands in for it, and the tests are two smaller
batches, whose peaks of reserved memory lie on a line.
"""

from __future__ import annotations

SOURCE = "Liu et al., IEEE Access 2022"
LIMITS = (
    "tested on the phantom instead of a GPU, and as far as its description goes: at a quarter and"
    " at half of the batch"
)


def choose_batches(batch_size: int) -> tuple[int, int]:
    """Return the batch sizes that are tested: a quarter and half of the job's own."""
    low = max(1, batch_size // 4)
    return low, max(low + 1, batch_size // 2)


def extrapolate_peak(tested: tuple[int, int], peaks: tuple[int, int], batch_size: int) -> int:
    """Return the peak of a batch on the line through those of the two that were tested."""
    (first, second), (low, high) = tested, peaks
    return max(0, low + (high - low) * (batch_size - first) // (second - first))
