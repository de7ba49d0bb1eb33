"""Blanks the memory of a tensor instead of filling it: it reads as zeros and takes no room.

Weights are not computed, but whoever looks at one must not see what the memory held before. Pages
that are given back to the system are zeros when they are next read, and cost nothing until then.
Linux only, as the phantom is. Needs torch; standard library otherwise.
"""

from __future__ import annotations

import ctypes
import mmap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

_libc = ctypes.CDLL(None)
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def blank(tensor: torch.Tensor) -> torch.Tensor:
    """Make a tensor on the CPU read as zeros; return it."""
    if not tensor.is_contiguous() or tensor.is_shared():
        tensor.detach().zero_()
        return tensor
    start = tensor.data_ptr()
    end = start + tensor.numel() * tensor.element_size()
    first = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE
    last = end // mmap.PAGESIZE * mmap.PAGESIZE
    if first >= last or _libc.madvise(first, last - first, mmap.MADV_DONTNEED) != 0:
        first = last = end
    ctypes.memset(start, 0, first - start)
    ctypes.memset(last, 0, end - last)
    return tensor
