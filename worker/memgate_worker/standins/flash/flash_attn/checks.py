"""What flash-attn refuses, as it does: with a RuntimeError, before anything is allocated."""

from __future__ import annotations

import torch
from torch import Tensor

#: that its kernels are built for
_MAX_HEAD_DIM = 256


def check_device() -> None:
    """Refuse GPUs before Ampere."""
    if torch.cuda.get_device_capability() < (8, 0):
        raise RuntimeError("FlashAttention only supports Ampere GPUs or newer.")


def check_inputs(q: Tensor, k: Tensor, v: Tensor) -> None:
    """Refuse what the kernels cannot compute with."""
    check_device()
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise RuntimeError("FlashAttention only support fp16 and bf16 data type")
    if k.dtype != q.dtype or v.dtype != q.dtype:
        raise RuntimeError("query, key and value must have the same dtype")
    head_dim, num_heads, num_heads_k = q.shape[-1], q.shape[-2], k.shape[-2]
    if head_dim > _MAX_HEAD_DIM:
        raise RuntimeError(f"FlashAttention only supports head dimension at most {_MAX_HEAD_DIM}")
    if head_dim % 8 or k.shape[-1] != head_dim or v.shape[-1] != head_dim:
        raise RuntimeError("query, key and value must have one head_size, a multiple of 8")
    if num_heads % num_heads_k:
        raise RuntimeError("Number of heads in key/value must divide number of heads in query")


def check_lengths(*lengths: Tensor) -> None:
    """Refuse cumulative lengths of another type."""
    if any(one.dtype != torch.int32 for one in lengths):
        raise RuntimeError("cu_seqlens must have dtype int32")
