"""Rotary positions, differentiable."""

from __future__ import annotations

from typing import Any

import torch
from flash_attn.ops.triton.rotary import apply_rotary
from torch import Tensor


class ApplyRotaryEmb(torch.autograd.Function):
    """The rotation; its gradient is the rotation back."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        cos: Tensor,
        sin: Tensor,
        interleaved: bool = False,
        inplace: bool = False,
        seqlen_offsets: int | Tensor = 0,
        cu_seqlens: Tensor | None = None,
        max_seqlen: int | None = None,
    ) -> Tensor:
        """Rotate."""
        out = apply_rotary(
            x, cos, sin, seqlen_offsets, cu_seqlens, max_seqlen, interleaved, inplace
        )
        ctx.save_for_backward(cos, sin, cu_seqlens)
        ctx.settings = (seqlen_offsets, max_seqlen, interleaved, inplace)
        return x if inplace else out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Rotate back."""
        cos, sin, cu_seqlens = ctx.saved_tensors
        offsets, max_seqlen, interleaved, inplace = ctx.settings
        back = apply_rotary(
            gradient, cos, sin, offsets, cu_seqlens, max_seqlen, interleaved, inplace, True
        )
        return back, *(None for _ in range(7))


def apply_rotary_emb(
    x: Tensor,
    cos: Tensor,
    sin: Tensor,
    interleaved: bool = False,
    inplace: bool = False,
    seqlen_offsets: int | Tensor = 0,
    cu_seqlens: Tensor | None = None,
    max_seqlen: int | None = None,
) -> Tensor:
    """Rotate heads by their positions."""
    rotated: Tensor = ApplyRotaryEmb.apply(
        x, cos, sin, interleaved, inplace, seqlen_offsets, cu_seqlens, max_seqlen
    )
    return rotated


apply_rotary_emb_func = apply_rotary_emb
