"""Has the values of tensors followed, so that what a job reads back from the phantom makes sense.

The other half is ``native/values/`` of the phantom engine.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch


def follow_values(library_dir: Path) -> None:
    """Begin, without touching CUDA.

    Raises:
        OSError: the library does not go with this torch.
    """
    native = ctypes.CDLL(str(library_dir / "libmemgate_values.so"))
    native.memgate_values_observe()
    # When the job first uses CUDA: the allocator does not exist before.
    torch.cuda._lazy_call(native.memgate_values_attach)
