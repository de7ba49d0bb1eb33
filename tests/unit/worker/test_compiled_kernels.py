"""Kernels that libraries compile with nvcc: those that allocate nothing are there already."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

from memgate_worker.hook.memgate_hook.compiled_kernels import stand_in_for_kernels

_BUILDER = "deepspeed.ops.op_builder.builder"


@pytest.fixture
def builder(monkeypatch: Any) -> Any:
    """What DeepSpeed loads its kernels by, as far as it is looked at: it compiles what it loads."""

    class OpBuilder:
        def __init__(self, name: str) -> None:
            self.name = name

        def load(self, verbose: bool = False) -> str:
            return f"{self.name} by nvcc"

    module = ModuleType(_BUILDER)
    module.OpBuilder = OpBuilder  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, _BUILDER, module)
    stand_in_for_kernels()
    return OpBuilder


@pytest.mark.parametrize(
    ("name", "functions"),
    [
        ("fused_adam", ["multi_tensor_adam"]),
        ("cpu_adam", ["create_adam", "adam_update", "adam_rollback", "destroy_adam"]),
    ],
)
def test_adam_needs_no_compiler(builder: Any, name: str, functions: list[str]) -> None:
    """Its kernels work in place: nothing is allocated by them, and nothing has to be done."""
    built = builder(name).load(verbose=True)

    for function in functions:
        assert getattr(built, function)(0, [[1], [2]], lr=1) == 0


def test_other_kernels_are_compiled(builder: Any) -> None:
    """What they allocate is not known: they are refused where the library looks for nvcc."""
    assert builder("transformer_inference").load() == "transformer_inference by nvcc"
