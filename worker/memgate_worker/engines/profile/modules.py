"""Marks calls of modules in a profiler trace, by the names that a model gives them. Needs torch.

The profiler can trace all of Python instead (``with_stack=True``), which takes many times as long,
makes traces ten times as large, and knows modules only by their class.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.profiler import record_function

from memgate.trace import MODULE_PREFIX


class ModuleMarks:
    """Marks every call of a module in this process from now on."""

    def __init__(self) -> None:
        """Listen."""
        self._names: WeakKeyDictionary[nn.Module, str] = WeakKeyDictionary()
        self._running: list[Any] = []
        register_module_forward_pre_hook(self._begin)
        register_module_forward_hook(self._end, always_call=True)

    def _begin(self, module: nn.Module, _: Any) -> None:
        if module not in self._names:
            self._name_all(module)
        mark = record_function(MODULE_PREFIX + self._names[module])
        mark.__enter__()
        self._running.append(mark)

    def _end(self, *_: Any) -> None:
        self._running.pop().__exit__(None, None, None)

    def _name_all(self, root: nn.Module) -> None:
        """Name a module by its class, and those in it by the last part of their path."""
        for path, module in root.named_modules():
            name = path.rpartition(".")[2] or type(root).__name__
            self._names.setdefault(module, name)
