"""Makes the CPU leave out the arithmetic of products, convolutions and optimizers. Needs torch.

Nobody looks at the numbers that a profiled job computes, and nearly all of its time goes into these
operators. Their kernels are replaced by ones that allocate the results, in the shapes and strides
that PyTorch's own meta kernels give, and compute nothing. Everything else runs for real; the
operators that the profiler sees, and what each leaves behind, are those of a real run.

A dispatch mode could do the same, but autograd adds gradients up in place only without one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward")
_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"

#: a gradient scaler asks it whether gradients are finite, and otherwise skips the optimizer's step
_UNSCALE = "_amp_foreach_non_finite_check_and_unscale_"

#: one of the operators on lists: it measures gradients
_REAL_FOREACH = frozenset({"_foreach_norm"})

#: floating-point tensors of at least this many elements are not filled: their pages stay untouched
_FILLED_BELOW_ELEMENTS = 4096

#: a library's kernels exist only as long as the library does
_kept: list[torch.library.Library] = []


def leave_out_arithmetic() -> None:
    """Change this process permanently; it belongs to one job."""
    library = torch.library.Library("aten", "IMPL")
    _kept.append(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that kernels are replaced is the point
        for name in _PRODUCTS:
            library.impl(name, _allocate_only(getattr(torch.ops.aten, name).default), "CPU")
        library.impl(_ATTENTION, _attention, "CPU")
        library.impl(f"{_ATTENTION}_backward", _attention_backward, "CPU")
        library.impl(_UNSCALE, _find_all_finite, "CPU")
        library.impl("fill_.Scalar", _fill, "CPU")
        for packet in _foreach_operators():
            for overload in packet.overloads():
                operator = getattr(packet, overload)
                if len(operator._schema.returns) <= 1:
                    library.impl(operator, _foreach(operator), "CPU")


def _allocate_only(operator: Any) -> Callable[..., Any]:
    def allocate(*args: Any, **kwargs: Any) -> Any:
        shapes = operator(*_as_meta(args), **_as_meta(kwargs))
        return tree_map_only(torch.Tensor, _like, shapes)

    return allocate


def _as_meta(values: Any) -> Any:
    return tree_map_only(torch.Tensor, _meta, values)


def _meta(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(
        tensor.size(), tensor.stride(), dtype=tensor.dtype, device=torch.device("meta")
    )


def _like(shape: torch.Tensor) -> torch.Tensor:
    return torch.empty_strided(shape.size(), shape.stride(), dtype=shape.dtype, device="cpu")


def _find_all_finite(*_: Any) -> None:
    """Leave the flag that reports infinities as it is."""


def _attention(query: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Make the results of fused attention; its meta kernel ignores the layout of the heads."""
    return _heads_inside(query), torch.empty(query.shape[:3], dtype=torch.float32)


def _attention_backward(
    _: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *__: Any,
    **___: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return _heads_inside(query), _heads_inside(key), _heads_inside(value)


def _heads_inside(like: torch.Tensor) -> torch.Tensor:
    batch, heads, tokens, width = like.shape
    return torch.empty((batch, tokens, heads, width), dtype=like.dtype).transpose(1, 2)


def _fill(target: torch.Tensor, value: Any) -> torch.Tensor:
    """Fill what may be an index, a mask or a counter; of floating-point tensors, small ones."""
    if target.is_floating_point() and target.numel() >= _FILLED_BELOW_ELEMENTS:
        return target
    return target.copy_(torch.scalar_tensor(value, dtype=target.dtype))


def _foreach_operators() -> list[Any]:
    names = {name.removeprefix("aten::").partition(".")[0] for name in _operator_names()}
    chosen = [name for name in sorted(names) if name.startswith("_foreach_")]
    return [getattr(torch.ops.aten, name) for name in chosen if name not in _REAL_FOREACH]


def _operator_names() -> Sequence[str]:
    names: Sequence[str] = torch._C._dispatch_get_all_op_names()
    return names


def _foreach(operator: Any) -> Callable[..., Any]:
    """Work on lists of tensors: in place, do nothing; otherwise results are like the first list."""
    is_functional = len(operator._schema.returns) == 1

    def allocate(first: list[torch.Tensor], *_: Any, **__: Any) -> Any:
        return [torch.empty_like(tensor) for tensor in first] if is_functional else None

    return _COUNTING.get(str(operator.overloadpacket), allocate)


def _of_numbers(compute: Callable[..., Any]) -> Callable[..., None]:
    """Compute only with single numbers: optimizers count their steps that way, and read them."""

    def compute_numbers(first: list[torch.Tensor], other: Any, **kwargs: Any) -> None:
        others = other if isinstance(other, list | tuple) else [other] * len(first)
        for target, value in zip(first, others, strict=True):
            if target.numel() == 1:
                compute(target, value, **kwargs)

    return compute_numbers


#: counts of steps, and what NAdam multiplies with each of them
_COUNTING = {
    "aten._foreach_add_": _of_numbers(torch.Tensor.add_),
    "aten._foreach_mul_": _of_numbers(torch.Tensor.mul_),
}
