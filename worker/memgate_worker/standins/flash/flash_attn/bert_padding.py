"""Taking padding out of batches and putting it back, with what flash-attn allocates for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional


def _spread(indices: Tensor, num_columns: int) -> Tensor:
    """Have each index for all columns, without memory for it."""
    return indices[:, None].expand(-1, num_columns)


class IndexFirstAxis(torch.autograd.Function):
    """Rows of a tensor."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, indices: Tensor) -> Tensor:
        """Gather them."""
        ctx.save_for_backward(indices)
        ctx.num_rows = rows.shape[0]
        shape = rows.shape[1:]
        flat = rows.reshape(rows.shape[0], -1)
        return torch.gather(flat, 0, _spread(indices, shape.numel())).reshape(-1, *shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Put their gradients among zeros."""
        (indices,) = ctx.saved_tensors
        shape = gradient.shape[1:]
        flat = gradient.reshape(gradient.shape[0], -1)
        all_rows = flat.new_zeros((ctx.num_rows, flat.shape[1]))
        all_rows.scatter_(0, _spread(indices, flat.shape[1]), flat)
        return all_rows.reshape(ctx.num_rows, *shape), None


class IndexPutFirstAxis(torch.autograd.Function):
    """Rows put among zeros."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, indices: Tensor, num_rows: int) -> Tensor:
        """Put them."""
        ctx.save_for_backward(indices)
        all_rows = rows.new_zeros((num_rows, *rows.shape[1:]))
        all_rows[indices] = rows
        return all_rows

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        """Take their gradients out."""
        (indices,) = ctx.saved_tensors
        return gradient[indices], None, None


index_first_axis = IndexFirstAxis.apply
index_put_first_axis = IndexPutFirstAxis.apply


def unpad_input(
    hidden_states: Tensor, attention_mask: Tensor, unused_mask: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, int, Tensor]:
    """Return what is not padding, where it was, cumulative lengths, the longest, and lengths."""
    present = attention_mask if unused_mask is None else attention_mask + unused_mask
    lengths = present.sum(dim=-1, dtype=torch.int32)
    used = attention_mask.sum(dim=-1, dtype=torch.int32)
    indices = torch.nonzero(present.flatten(), as_tuple=False).flatten()
    longest = int(lengths.max().item())
    cumulative = functional.pad(torch.cumsum(lengths, dim=0, dtype=torch.int32), (1, 0))
    rows = index_first_axis(hidden_states.flatten(0, 1), indices)
    return rows, indices, cumulative, longest, used


def pad_input(hidden_states: Tensor, indices: Tensor, batch: int, seqlen: int) -> Tensor:
    """Put padding back."""
    padded: Tensor = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return padded.unflatten(0, (batch, seqlen))
