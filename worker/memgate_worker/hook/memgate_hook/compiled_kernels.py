"""Stands in for kernels that libraries compile at first use, with nvcc: there is none here.

Only those that are known to allocate nothing: they work in place, on tensors that the library's own
Python code has made. All others are refused by name where the library looks for nvcc.
"""

from __future__ import annotations

from functools import wraps
from types import SimpleNamespace
from typing import Any

from .later_imports import when_imported


def stand_in_for_kernels() -> None:
    """Have libraries find them built already."""
    when_imported("deepspeed.ops.op_builder.builder", _have_adam_built)


def _have_adam_built(builder: Any) -> None:
    """Change DeepSpeed's builder: Adam steps in place, on the GPU or, if offloaded, on the host.

    ``multi_tensor_adam`` (csrc/adam/multi_tensor_adam.cu) launches one kernel for lists of tensors
    and allocates nothing. Nor does its counterpart for the host (csrc/adam/cpu_adam_impl.cpp):
    its arithmetic would touch all of a state that is not filled here.
    """
    builder_class = builder.OpBuilder
    load = builder_class.load
    built = {
        "fused_adam": SimpleNamespace(multi_tensor_adam=_do_nothing),
        "cpu_adam": SimpleNamespace(
            create_adam=_do_nothing,
            adam_update=_do_nothing,
            adam_rollback=_do_nothing,
            adam_update_copy=_do_nothing,  # until 0.15: it copied weights that it had stepped
            destroy_adam=_do_nothing,
        ),
    }

    @wraps(load)
    def load_or_take(self: Any, *args: Any, **kwargs: Any) -> Any:
        return built.get(self.name) or load(self, *args, **kwargs)

    builder_class.load = load_or_take


def _do_nothing(*_: Any, **__: Any) -> int:
    return 0
