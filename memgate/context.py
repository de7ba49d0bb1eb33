"""What a process holds on a GPU besides its allocator's segments: its CUDA context, as a range.

The bare context and the handles and kernels of libraries are not the same on every machine: since
libraries are loaded lazily (CUDA 11.7) 300 to 400 MB are usual, 200 to 700 MB have been reported,
and no public table tells architectures apart. So every architecture has the same documented range,
until the operator measures it (``memgate calibrate``) or outcomes narrow it.
"""

from __future__ import annotations

from typing import NamedTuple

#: CUDA context and libraries: the least, the usual and the most
MIN_CONTEXT_BYTES = 200 * 10**6
USUAL_CONTEXT_BYTES = 400 * 10**6
MAX_CONTEXT_BYTES = 700 * 10**6


class ContextRange(NamedTuple):
    """The least, the usual and the most, and where they are from."""

    low_bytes: int
    usual_bytes: int
    high_bytes: int
    source: str


#: reported for any GPU
DOCUMENTED_CONTEXT = ContextRange(
    MIN_CONTEXT_BYTES, USUAL_CONTEXT_BYTES, MAX_CONTEXT_BYTES, "public reports"
)
