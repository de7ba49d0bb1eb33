"""Rotary positions, differentiable."""

from __future__ import annotations

from typing import Any

import torch
from flash_attn.ops.triton.rotary import apply_rotary
from torch import Tensor, nn


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


class RotaryEmbedding(nn.Module):
    """Tables of rotations, made when a longer sequence comes; models derive theirs from it."""

    def __init__(
        self,
        dim: int,
        base: float = 10000.0,
        interleaved: bool = False,
        scale_base: float | None = None,
        pos_idx_in_fp32: bool = True,
        device: Any = None,
    ) -> None:
        """Make the frequencies."""
        super().__init__()
        if scale_base is not None:
            raise NotImplementedError("memgate's stand-in for flash-attn has no xPos scaling")
        self.dim, self.base, self.interleaved = dim, base, interleaved
        self.scale_base, self.pos_idx_in_fp32 = scale_base, pos_idx_in_fp32
        powers = torch.arange(0, dim, 2, device=device, dtype=torch.float32) / dim
        self.register_buffer("inv_freq", 1.0 / base**powers, persistent=False)
        self.register_buffer("scale", None, persistent=False)
        self._seq_len_cached = 0
        self._cos_cached: Tensor | None = None
        self._sin_cached: Tensor | None = None

    def _update_cos_sin_cache(self, seqlen: int, device: Any = None, dtype: Any = None) -> None:
        table = self._cos_cached
        is_there = table is not None and (table.device, table.dtype) == (device, dtype)
        if is_there and seqlen <= self._seq_len_cached:
            return
        self._seq_len_cached = seqlen
        positions = torch.arange(seqlen, device=device, dtype=torch.float32)
        angles = torch.outer(positions, self.inv_freq.to(device))
        self._cos_cached, self._sin_cached = angles.cos().to(dtype), angles.sin().to(dtype)
