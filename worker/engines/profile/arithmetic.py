"""Runs a job on the CPU without computing anything large. Needs torch.

Nobody looks at the numbers that a profiled job computes, and they are nearly all of its time and
memory. While this is active, an operator on large tensors allocates its results, in the shapes and
strides that PyTorch's own meta kernels tell, and computes nothing: their pages are never touched.
Small tensors are computed for real, so that what a program looks at is right. Operators that the
profiler sees, and what each leaves behind, are the same as in a real run; a test holds them equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map_only

#: tensors of at least this many elements are not computed with; leaving out costs time as well
_LARGE_ELEMENTS = 1 << 20
#: products and convolutions take so much more time that they are left out sooner
_HEAVY_ELEMENTS = 1 << 12
_ATTENTION = frozenset(
    {
        "_scaled_dot_product_flash_attention_for_cpu",
        "_scaled_dot_product_flash_attention_for_cpu_backward",
    }
)
_HEAVY = _ATTENTION | frozenset(
    {
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "convolution",
        "convolution_backward",
    }
)


class WithoutArithmetic(TorchDispatchMode):
    """While it is active, operators on large tensors allocate their results and nothing more."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        if func.is_view or not _has_large(func, args, named):
            return func(*args, **named)
        written = _written(func, args, named)
        if func._schema.returns and all(given.alias_info for given in func._schema.returns):
            return written[0] if len(written) == 1 else tuple(written)
        if not func._schema.returns:
            return None
        if func.overloadpacket.__name__ in _ATTENTION:
            return _attention(func, args)
        if named.get("device") is not None:
            named["device"] = torch.device("meta")
        shapes = func(*_as_meta(args), **_as_meta(named))
        return tree_map_only(torch.Tensor, _like, shapes)


def _has_large(func: Any, args: Any, named: Any) -> bool:
    is_heavy = func.overloadpacket.__name__ in _HEAVY
    least = _HEAVY_ELEMENTS if is_heavy else _LARGE_ELEMENTS
    values, _ = tree_flatten((args, named))
    return any(isinstance(value, torch.Tensor) and value.numel() >= least for value in values)


def _written(func: Any, args: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
    """Return the arguments that an operator writes to."""
    return [
        args[position] if position < len(args) else named.get(argument.name)
        for position, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]


def _attention(func: Any, args: Sequence[Any]) -> Any:
    """Make what fused attention gives: heads inside of tokens, which its meta kernel leaves out."""
    is_backward = func.overloadpacket.__name__.endswith("_backward")
    query, key, value = args[1:4] if is_backward else args[:3]
    if is_backward:
        return tuple(_heads_inside(tensor) for tensor in (query, key, value))
    return _heads_inside(query), torch.empty(query.shape[:3], dtype=torch.float32)


def _heads_inside(like: torch.Tensor) -> torch.Tensor:
    batch, heads, tokens, width = like.shape
    return torch.empty((batch, tokens, heads, width), dtype=like.dtype).transpose(1, 2)


def _as_meta(values: Any) -> Any:
    return tree_map_only(torch.Tensor, lambda tensor: tensor.to("meta"), values)


def _like(shape: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(shape.size(), shape.stride(), dtype=shape.dtype, device="cpu")
