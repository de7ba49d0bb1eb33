"""Work areas of cuFFT and cuSOLVER -> reasons.

PyTorch allocates them, so they are in the timeline, but only NVIDIA's libraries know their sizes.
What is assumed where they cannot be asked is in `native/cufft.cpp` and `native/cusolver.cpp`.
"""

from __future__ import annotations

from collections.abc import Iterator

from memgate.report import Reason
from memgate.units import format_size
from memgate_worker.engines.messages import WorkAreas

#: tables that every transform needs; they are part of what is measured beside the context
_LITTLE_BYTES = 64 << 20


def doubt_work_areas(found: WorkAreas) -> Iterator[Reason]:
    """Yield which sizes were assumed."""
    if found.fft_assumed is not None:
        yield Reason(
            code="FFT_WORK_AREAS",
            message="torch.fft has cuFFT compute in work areas whose sizes only cuFFT knows; the"
            f" largest was assumed to be {_say(found.fft_assumed)}, and it may need less or more."
            " A cuFFT of CUDA 12.4 or later in the job's environment (memgate run) is asked",
        )
    if found.fft_asked is not None and found.cufft_itself > _LITTLE_BYTES:
        yield Reason(
            code="FFT_WORK_AREAS",
            message=f"the job's own cuFFT takes {_say(found.cufft_itself)} for itself, besides the"
            " work areas that PyTorch gives it, for lengths with large prime factors; they are not"
            " in the figures",
        )
    if found.linalg_assumed is not None:
        yield Reason(
            code="LINALG_WORK_AREAS",
            message="torch.linalg has cuSOLVER compute in work areas whose sizes only cuSOLVER"
            f" knows; the largest was assumed to be {_say(found.linalg_assumed)}, and it may need"
            " less or more",
        )


def note_work_areas(found: WorkAreas) -> Iterator[Reason]:
    """Yield what the job's own libraries said."""
    if found.fft_asked is not None:
        yield Reason(
            code="CUFFT_ASKED",
            message="the work areas of torch.fft are as large as the job's own cuFFT says, the"
            f" largest {_say(found.fft_asked)}; the {_say(found.cufft_itself)} that it takes for"
            " itself are not in the figures",
        )


def _say(num_bytes: int) -> str:
    size, exact = format_size(num_bytes), f"{num_bytes} bytes"
    return exact if size == exact else f"{size} ({exact})"
