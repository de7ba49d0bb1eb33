"""What flash-attn's native functions allocate, as operators of the names that it gives them.

Each returns what the real one returns; what it needs meanwhile is freed when it returns. Operators
rather than plain functions, so that ``torch.compile`` sees one node where it would see one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from flash_attn.checks import check_inputs, check_lengths
from flash_attn.splitting import allocate_splits, num_multiprocessors, round_head_dim, round_up
from torch import Tensor

#: queries of a sequence are padded to a multiple of it
_BLOCK = 128

_SETTINGS = (
    "float dropout_p, float softmax_scale, bool causal, int window_size_left,"
    " int window_size_right, float softcap, Tensor? alibi_slopes"
)
_RESULTS = "(Tensor, Tensor, Tensor, Tensor)"
_LENGTHS = "Tensor cu_seqlens_q, Tensor cu_seqlens_k, SymInt max_seqlen_q, SymInt max_seqlen_k"


def _operator(
    name: str, schema: str, mutates: tuple[str, ...] = ()
) -> Callable[[Callable[..., Any]], Any]:
    def define(function: Callable[..., Any]) -> Any:
        if not hasattr(torch.library, "custom_op"):  # before 2.4, where it cannot be compiled
            return function
        make = torch.library.custom_op(
            f"flash_attn::{name}", mutates_args=mutates, schema=schema, device_types="cuda"
        )
        return make(function)

    return define


def _without_memory(operator: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Say what an operator returns when torch.compile traces it."""

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        if hasattr(operator, "register_fake"):
            operator.register_fake(function)
        return function

    return register


def contiguous(*tensors: Any) -> list[Any]:
    """Copy what has gaps in its last dimension."""
    return [one.contiguous() if one is not None and one.stride(-1) != 1 else one for one in tensors]


def _results(
    q: Tensor, lse: tuple[int, ...], probabilities: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor]:
    """Allocate the output, the logarithms of sums, and the probabilities if they are asked for."""
    out = torch.empty_like(q)
    sums = q.new_empty(lse, dtype=torch.float32)
    return out, sums, q.new_empty(probabilities)


def _random_state(q: Tensor) -> Tensor:
    return q.new_empty(2, dtype=torch.int64)


@_operator(
    "_flash_attn_forward",
    f"(Tensor q, Tensor k, Tensor v, {_SETTINGS}, bool return_softmax) -> {_RESULTS}",
)
def flash_attn_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    return_softmax: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Attention of batches of one length."""
    q, k, v = contiguous(q, k, v)
    check_inputs(q, k, v)
    batch, queries, heads, _ = q.shape
    keys, groups = k.shape[1], heads // k.shape[2]
    shown = (batch, heads, round_up(queries, _BLOCK), round_up(keys, _BLOCK))
    out, sums, shown_probabilities = _results(
        q, (batch, heads, queries), shown if return_softmax else (0,)
    )
    is_swapped = _is_swapped(
        queries, groups, (window_size_left, window_size_right), keys, dropout_p, alibi_slopes
    )
    if is_swapped:  # the heads of a group are taken for queries
        heads, queries = heads // groups, groups
    splits = allocate_splits(
        q, batch=batch, heads=heads, queries=queries, keys=keys, dropout=dropout_p
    )
    random_state = _random_state(q)
    del splits
    return out, sums, shown_probabilities, random_state


@_without_memory(flash_attn_forward)
def _(q: Tensor, k: Tensor, v: Tensor, *settings: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch, queries, heads, _ = q.shape
    return_softmax = settings[-1]
    shown = (batch, heads, round_up(queries, _BLOCK), round_up(k.shape[1], _BLOCK))
    results = _results(q, (batch, heads, queries), shown if return_softmax else (0,))
    return (*results, _random_state(q))


def _is_swapped(
    queries: int,
    groups: int,
    window: tuple[int, int],
    keys: int,
    dropout: float,
    alibi_slopes: Tensor | None,
) -> bool:
    """Say whether one query of several heads is taken for several queries of one head."""
    is_windowed = any(0 <= side < keys for side in window)
    return queries == 1 and groups > 1 and not is_windowed and dropout == 0 and alibi_slopes is None


@_operator(
    "_flash_attn_varlen_forward",
    f"(Tensor q, Tensor k, Tensor v, {_LENGTHS}, float dropout_p, float softmax_scale, bool causal,"
    " int window_size_left=-1, int window_size_right=-1, float softcap=0.0,"
    " Tensor? alibi_slopes=None, bool return_softmax=False, Tensor? block_table=None,"
    " Tensor? leftpad_k=None, Tensor? seqused_k=None, bool zero_tensors=False)"
    f" -> {_RESULTS}",
)
def flash_attn_varlen_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    return_softmax: bool = False,
    block_table: Tensor | None = None,
    leftpad_k: Tensor | None = None,
    seqused_k: Tensor | None = None,
    zero_tensors: bool = False,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Attention of sequences of several lengths, laid end to end."""
    q, k, v = contiguous(q, k, v)
    check_inputs(q, k, v)
    check_lengths(cu_seqlens_q, cu_seqlens_k)
    total, heads, _ = q.shape
    batch, groups = cu_seqlens_q.numel() - 1, heads // k.shape[-2]
    shown = (batch, heads, round_up(max_seqlen_q, _BLOCK), round_up(max_seqlen_k, _BLOCK))
    out, sums, shown_probabilities = _results(q, (heads, total), shown if return_softmax else (0,))
    window = (window_size_left, window_size_right)
    splits = []
    if _is_swapped(max_seqlen_q, groups, window, max_seqlen_k, dropout_p, alibi_slopes):
        splits = allocate_splits(
            q,
            batch=batch,
            heads=heads // groups,
            queries=groups,
            keys=max_seqlen_k,
            dropout=dropout_p,
        )
    random_state = _random_state(q)
    del splits
    return out, sums, shown_probabilities, random_state


@_without_memory(flash_attn_varlen_forward)
def _(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *settings: Any,
    return_softmax: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    total, heads, _head_dim = q.shape
    is_shown = settings[7] if len(settings) > 7 else return_softmax
    batch = cu_seqlens_q.numel() - 1
    shown = (batch, heads, round_up(max_seqlen_q, _BLOCK), round_up(max_seqlen_k, _BLOCK))
    return (*_results(q, (heads, total), shown if is_shown else (0,)), _random_state(q))


_GRADIENTS = (
    "Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor softmax_lse, Tensor(a!)? dq,"
    " Tensor(b!)? dk, Tensor(c!)? dv"
)
_OF_BACKWARD = f"{_SETTINGS}, bool deterministic, Tensor? rng_state=None"


@_operator("_flash_attn_backward", f"({_GRADIENTS}, {_OF_BACKWARD}) -> Tensor", ("dq", "dk", "dv"))
def flash_attn_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    rng_state: Tensor | None = None,
) -> Tensor:
    """Gradients of ``flash_attn_forward``."""
    batch, queries, heads, _ = q.shape
    rows = (batch, round_up(queries, _BLOCK))
    sums = (batch, heads, rows[1])
    return _gradients((dout, q, k, v, out), (dq, dk, dv), sums, rows, batch, deterministic)


@_without_memory(flash_attn_backward)
def _(dout: Tensor, q: Tensor, *_: Any, **__: Any) -> Tensor:
    batch, queries, heads, _head_dim = q.shape
    return q.new_empty((batch, heads, round_up(queries, _BLOCK)), dtype=torch.float32)


@_operator(
    "_flash_attn_varlen_backward",
    f"({_GRADIENTS}, {_LENGTHS}, {_OF_BACKWARD}, bool zero_tensors=False) -> Tensor",
    ("dq", "dk", "dv"),
)
def flash_attn_varlen_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor | None,
    dk: Tensor | None,
    dv: Tensor | None,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Tensor | None,
    deterministic: bool,
    rng_state: Tensor | None = None,
    zero_tensors: bool = False,
) -> Tensor:
    """Gradients of ``flash_attn_varlen_forward``; each sequence has a block of rows to spare."""
    check_lengths(cu_seqlens_q, cu_seqlens_k)
    batch, heads = cu_seqlens_q.numel() - 1, q.shape[1]
    num_rows = q.shape[0] + _BLOCK * batch
    sums = (heads, num_rows)
    return _gradients((dout, q, k, v, out), (dq, dk, dv), sums, (num_rows,), batch, deterministic)


@_without_memory(flash_attn_varlen_backward)
def _(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    cu_seqlens_q: Tensor,
    *_: Any,
    **__: Any,
) -> Tensor:
    num_rows = q.shape[0] + _BLOCK * (cu_seqlens_q.numel() - 1)
    return q.new_empty((q.shape[1], num_rows), dtype=torch.float32)


def _gradients(
    inputs: tuple[Tensor, ...],
    gradients: tuple[Tensor | None, ...],
    sums: tuple[int, ...],
    rows: tuple[int, ...],
    batch: int,
    deterministic: bool,
) -> Tensor:
    """Allocate what the backward kernels need, and sum up what heads of a group share."""
    copies = contiguous(*inputs)
    q, k, v = copies[1:4]
    check_inputs(q, k, v)
    dq, dk, dv = (
        torch.empty_like(like) if given is None else given
        for given, like in zip(gradients, (q, k, v), strict=True)
    )
    heads, head_dim = q.shape[-2:]
    softmax_d = q.new_empty(sums, dtype=torch.float32)
    accumulated = (*rows, heads, round_head_dim(head_dim))
    if deterministic:  # one for each block of threads that adds to it, instead of atomic sums
        num_parts = -(-num_multiprocessors() // (batch * heads))
        dq_accum = q.new_zeros((num_parts, *accumulated), dtype=torch.float32)
    else:
        dq_accum = q.new_empty(accumulated, dtype=torch.float32)
    heads_k = k.shape[-2]
    if heads_k != heads:
        per_head = (*k.shape[:-2], heads, head_dim)
        dk_expanded, dv_expanded = k.new_empty(per_head), k.new_empty(per_head)
        grouped = (*k.shape[:-2], heads_k, heads // heads_k, head_dim)
        torch.sum(dk_expanded.reshape(grouped), dim=-2, out=dk)
        torch.sum(dv_expanded.reshape(grouped), dim=-2, out=dv)
    del dq, dq_accum, copies
    return softmax_d
