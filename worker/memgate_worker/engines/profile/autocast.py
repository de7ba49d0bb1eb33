"""Makes autocast on the CPU cast what it casts on CUDA. Needs torch.

Both cast products and convolutions down in the same way. They differ in what is computed in
float32: CUDA's list has norms, softmax, powers, sums and more, of which the CPU's has hardly any,
and a cast tensor that the backward pass needs stays in memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

#: inputs are cast to float32
_IN_FLOAT32 = (
    *("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log1p", "log2"),
    *("reciprocal", "rsqrt", "sinh", "tan", "softplus"),
    *("pow.Scalar", "pow.Tensor_Scalar", "pow.Tensor_Tensor"),
    *("layer_norm", "native_layer_norm", "rms_norm", "group_norm"),
    *("cosine_similarity", "dist", "pdist", "renorm", "logsumexp"),
    *("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d"),
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d"),
)
#: the result is asked for in float32: the input is not copied before
_TO_FLOAT32 = (
    *("softmax.int", "log_softmax.int", "cumsum", "cumprod"),
    *("sum", "sum.dim_IntList", "prod", "prod.dim_int"),
)
#: on the CPU's list but not on CUDA's, where its parts are cast
_IN_PARTS = ("cross_entropy_loss",)

#: a library's kernels exist only as long as the library does
_kept: list[torch.library.Library] = []


def cast_as_on_cuda() -> None:
    """Change this process permanently; it belongs to one job."""
    library = torch.library.Library("aten", "IMPL")
    _kept.append(library)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that kernels are replaced is the point
        for name in _IN_FLOAT32:
            _replace(library, name, _in_float32)
        for name in _TO_FLOAT32:
            _replace(library, name, _to_float32)
        for name in _IN_PARTS:
            library.impl(name, torch.library.fallthrough_kernel, "AutocastCPU")


def _replace(
    library: torch.library.Library, name: str, make_kernel: Callable[[Any], Callable[..., Any]]
) -> None:
    """Do as CUDA does, if this version of PyTorch does."""
    if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "AutocastCUDA"):
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
        library.impl(name, make_kernel(operator), "AutocastCPU")


def _in_float32(operator: Any) -> Callable[..., Any]:
    def kernel(*args: Any, **kwargs: Any) -> Any:
        with _without_autocast():
            args, kwargs = tree_map_only(torch.Tensor, _as_float32, (args, kwargs))
            return operator(*args, **kwargs)

    return kernel


def _to_float32(operator: Any) -> Callable[..., Any]:
    names = [argument.name for argument in operator._schema.arguments]

    def kernel(*args: Any, **kwargs: Any) -> Any:
        named = dict(zip(names, args, strict=False)) | kwargs
        if named.get("dtype") is None and _is_low(args[0]):
            named["dtype"] = torch.float32
        with _without_autocast():
            return operator(**named)

    return kernel


def _without_autocast() -> Any:
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
    return torch._C._ExcludeDispatchKeyGuard(keys)


def _as_float32(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.float32) if _is_low(tensor) else tensor


def _is_low(tensor: torch.Tensor) -> bool:
    return tensor.dtype in (torch.float16, torch.bfloat16)
