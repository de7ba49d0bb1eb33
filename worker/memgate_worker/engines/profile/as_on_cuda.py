"""Makes PyTorch choose on the CPU what it chooses on CUDA, wherever it has a choice.

Optimizers and gradient clipping go over lists of tensors at once (``foreach``) on CUDA unless told
otherwise, and that takes memory. Attention with dropout is fused on CUDA. Needs torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional
from torch.optim import optimizer
from torch.utils import _foreach_utils


def choose_as_on_cuda() -> None:
    """Change this process permanently; it belongs to one job."""
    supported = _foreach_utils._get_foreach_kernels_supported_devices

    def with_cpu() -> list[str]:
        return [*supported(), "cpu"]

    optimizer._get_foreach_kernels_supported_devices = with_cpu
    _foreach_utils._get_foreach_kernels_supported_devices = with_cpu
    functional.scaled_dot_product_attention = _without_dropout(
        functional.scaled_dot_product_attention
    )


def _without_dropout(attention: Any) -> Any:
    """Attention on the CPU is fused only without dropout; what is kept is the same."""

    def scaled_dot_product_attention(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor | None = None,
        dropout_p: float = 0.0,
        *args: Any,
        **kwargs: Any,
    ) -> torch.Tensor:
        del dropout_p
        result: torch.Tensor = attention(query, key, value, attn_mask, 0.0, *args, **kwargs)
        return result

    return scaled_dot_product_attention
