"""The functions that models call, differentiable.

Queries, keys and values come apart, with keys and values packed into one tensor, or all in one;
their gradients are allocated in the same way. All six functions are one function of autograd.
"""

from __future__ import annotations

from typing import Any

import torch
from flash_attn.checks import check_device
from flash_attn.kernels import (
    contiguous,
    flash_attn_backward,
    flash_attn_forward,
    flash_attn_varlen_backward,
    flash_attn_varlen_forward,
)
from flash_attn.splitting import allocate_splits
from torch import Tensor
from torch.nn import functional

# What code beside transformers (ring attention, sequence parallelism) imports by these names.
_flash_attn_forward = _wrapped_flash_attn_forward = flash_attn_forward
_flash_attn_backward = _wrapped_flash_attn_backward = flash_attn_backward
_flash_attn_varlen_forward = _wrapped_flash_attn_varlen_forward = flash_attn_varlen_forward
_flash_attn_varlen_backward = _wrapped_flash_attn_varlen_backward = flash_attn_varlen_backward


def maybe_contiguous(x: Any) -> Any:
    """Copy a tensor that has gaps in its last dimension."""
    return contiguous(x)[0]


#: where packed tensors have their parts, counted from the end
_PARTS = -3


def _unpack(first: Tensor, second: Tensor | None, third: Tensor | None) -> list[Tensor]:
    if second is None:
        return [first.select(_PARTS, part).detach() for part in range(3)]
    if third is None:
        return [first, *(second.select(_PARTS, part).detach() for part in range(2))]
    return [first, second, third]


def _pad(tensor: Tensor) -> Tensor:
    """Pad heads to a multiple of 8."""
    missing = -tensor.shape[-1] % 8
    return functional.pad(tensor, [0, missing]) if missing else tensor


def _allocate_gradients(
    num_inputs: int, q: Tensor, k: Tensor, v: Tensor
) -> tuple[list[Tensor], list[Tensor]]:
    """Allocate gradients; return one for each input, and those of q, k and v, which are in them."""
    if num_inputs == 3:
        apart = [torch.empty_like(one) for one in (q, k, v)]
        return apart, apart
    dq = [] if num_inputs == 1 else [torch.empty_like(q)]
    num_parts = 3 - len(dq)
    packed = k.new_empty((*k.shape[:-2], num_parts, *k.shape[-2:]))
    return [*dq, packed], [*dq, *(packed.select(_PARTS, part) for part in range(num_parts))]


class _FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        first: Tensor,
        second: Tensor | None,
        third: Tensor | None,
        cu_seqlens_q: Tensor | None,
        cu_seqlens_k: Tensor | None,
        max_seqlen_q: int,
        max_seqlen_k: int,
        dropout_p: float,
        softmax_scale: float | None,
        causal: bool,
        window_left: int,
        window_right: int,
        softcap: float,
        alibi_slopes: Tensor | None,
        deterministic: bool,
        return_softmax: bool,
        block_table: Tensor | None,
        is_grad_enabled: bool,
    ) -> Any:
        given = [one for one in (first, second, third) if one is not None]
        is_grad = is_grad_enabled and any(one.requires_grad for one in given)
        q, k, v = _unpack(first, second, third)
        head_dim = q.shape[-1]
        scale = head_dim**-0.5 if softmax_scale is None else softmax_scale
        q, k, v = _pad(q), _pad(k), _pad(v)
        settings = (scale, causal, window_left, window_right, softcap, alibi_slopes)
        is_shown = return_softmax and dropout_p > 0
        if cu_seqlens_q is None:
            out, sums, shown, state = flash_attn_forward(q, k, v, dropout_p, *settings, is_shown)
        else:
            lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
            out, sums, shown, state = flash_attn_varlen_forward(
                q, k, v, *lengths, dropout_p, *settings, is_shown, block_table
            )
        if is_grad:
            ctx.save_for_backward(q, k, v, out, sums, cu_seqlens_q, cu_seqlens_k, state)
            ctx.num_inputs = len(given)
            ctx.max_seqlens = (max_seqlen_q, max_seqlen_k)
            ctx.settings = (dropout_p, *settings, deterministic)
        out = out[..., :head_dim]
        return (out, sums, shown) if return_softmax else out

    @staticmethod
    def backward(ctx: Any, dout: Tensor, *_: Any) -> Any:
        q, k, v, out, sums, cu_seqlens_q, cu_seqlens_k, state = ctx.saved_tensors
        gradients, parts = _allocate_gradients(ctx.num_inputs, q, k, v)
        padded = _pad(dout)
        if cu_seqlens_q is None:
            flash_attn_backward(padded, q, k, v, out, sums, *parts, *ctx.settings, state)
        else:
            lengths = (cu_seqlens_q, cu_seqlens_k, *ctx.max_seqlens)
            flash_attn_varlen_backward(
                padded, q, k, v, out, sums, *parts, *lengths, *ctx.settings, state
            )
        trimmed = [one[..., : dout.shape[-1]] for one in gradients]
        return (*trimmed, *(None for _ in range(18 - len(trimmed))))


def _attend(
    tensors: tuple[Tensor, ...],
    lengths: tuple[Any, ...],
    dropout_p: float,
    softmax_scale: float | None,
    causal: bool,
    window_size: tuple[int, int],
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    return_attn_probs: bool,
    block_table: Tensor | None = None,
) -> Any:
    cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k = lengths
    return _FlashAttention.apply(
        *tensors,
        *(None for _ in range(3 - len(tensors))),
        cu_seqlens_q,
        cu_seqlens_k,
        int(max_seqlen_q),
        int(max_seqlen_k),
        dropout_p,
        softmax_scale,
        causal,
        *window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
        block_table,
        torch.is_grad_enabled(),
    )


#: of batches whose sequences have one length
_NO_LENGTHS = (None, None, 0, 0)
_NO_WINDOW = (-1, -1)


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = _NO_WINDOW,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Attend: (batch, length, heads, head dimension) each."""
    options = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes)
    return _attend((q, k, v), _NO_LENGTHS, *options, deterministic, return_attn_probs)


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = _NO_WINDOW,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Attend: kv is (batch, length, 2, heads, head dimension)."""
    options = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes)
    return _attend((q, kv), _NO_LENGTHS, *options, deterministic, return_attn_probs)


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = _NO_WINDOW,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Attend: qkv is (batch, length, 3, heads, head dimension)."""
    options = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes)
    return _attend((qkv,), _NO_LENGTHS, *options, deterministic, return_attn_probs)


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = _NO_WINDOW,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Any:
    """Attend: sequences of several lengths end to end, (total, heads, head dimension) each."""
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    options = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes)
    return _attend((q, k, v), lengths, *options, deterministic, return_attn_probs, block_table)


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = _NO_WINDOW,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Attend: kv is (total, 2, heads, head dimension)."""
    lengths = (cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    options = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes)
    return _attend((q, kv), lengths, *options, deterministic, return_attn_probs)


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = _NO_WINDOW,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Attend: qkv is (total, 3, heads, head dimension)."""
    lengths = (cu_seqlens, cu_seqlens, max_seqlen, max_seqlen)
    options = (dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes)
    return _attend((qkv,), lengths, *options, deterministic, return_attn_probs)


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = _NO_WINDOW,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Attend to a cache while text is generated; there is no backward pass."""
    check_device()
    q, k, v = contiguous(q, k, v)
    if isinstance(cache_seqlens, int):
        cache_seqlens = torch.full(
            (q.shape[0],), cache_seqlens, dtype=torch.int32, device=k_cache.device
        )
    batch, queries, heads, head_dim = q.shape
    keys = k_cache.shape[1] * (1 if block_table is None else block_table.shape[1])
    groups = heads // k_cache.shape[2]
    padded = [_pad(one) for one in (q, k_cache, v_cache)]
    out = torch.empty_like(padded[0])
    sums = q.new_empty((batch, heads, queries), dtype=torch.float32)
    padded += [_pad(one) for one in (k, v) if one is not None]
    if queries == 1 and groups > 1 and max(window_size) < 0 and alibi_slopes is None:
        heads, queries = heads // groups, groups
    splits = allocate_splits(
        padded[0],
        batch=batch,
        heads=heads,
        queries=queries,
        keys=keys,
        dropout=0.0,
        splits=num_splits,
    )
    del splits
    out = out[..., :head_dim]
    return (out, sums) if return_softmax_lse else out
