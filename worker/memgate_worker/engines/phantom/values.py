"""Has the values of tensors followed, so that what a job reads back from the phantom makes sense.

The other half is ``native/values/``. Needs torch; nothing of memgate's own is imported here.
"""

from __future__ import annotations

import ctypes

import torch


def follow_values() -> None:
    """Begin, without touching CUDA."""
    native = ctypes.CDLL("libmemgate_values.so")
    native.memgate_values_observe()
    torch.cuda._lazy_call(native.memgate_values_attach)
