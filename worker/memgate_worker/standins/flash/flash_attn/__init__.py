"""A stand-in for the flash-attn package: allocates what it allocates, and computes nothing.

The real one cannot be built without a CUDA compiler. Shapes, types, order and lifetimes are those
of version 2.8.3 (its ``csrc/flash_attn/flash_api.cpp`` and ``flash_attn_interface.py``). Kernels on
the phantom do nothing, so there is nothing else to imitate.

It is found by jobs of specs that ask for flash attention, in runtimes that lack the real package;
a command under ``memgate run`` never sees it. What is missing here fails as a missing module does.
"""

from __future__ import annotations

from flash_attn.flash_attn_interface import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)

__version__ = "2.8.3"

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]
