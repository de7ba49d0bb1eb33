"""Every class of error that memgate raises on purpose, wherever it is defined."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from functools import cache
from importlib import import_module

import memgate
import memgate_service
import memgate_worker
from memgate.errors import MemgateError

#: run inside a runtime: they import torch, and define no errors
_NEED_TORCH = (
    *("memgate_worker.engines.phantom.", "memgate_worker.engines.profile."),
    *("memgate_worker.engines.estimators.probe", "memgate_worker.engines.estimators.tracker"),
    *("memgate_worker.hook.", "memgate_worker.jobs.tasks.", "memgate_worker.jobs.trainers."),
    "memgate_worker.jobs.distributed.",
    "memgate_worker.standins.flash.flash_attn",
)
_NEED_TORCH_TOO = tuple(
    f"memgate_worker.jobs.{name}"
    for name in (
        *("adapters", "attention", "between_steps", "checkpoints", "compiling", "configs"),
        *("constructors", "diffusion", "encoders", "liger", "loop", "models", "offloading"),
        *("optimizers", "quantization", "steering", "tasks", "torchao_weights", "trainers"),
    )
)


@cache
def all_error_classes() -> list[type[MemgateError]]:
    """Import everything, and return what is derived from the base, by name."""
    for package in (memgate, memgate_service, memgate_worker):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            is_torchs = module.name.startswith(_NEED_TORCH) or module.name in _NEED_TORCH_TOO
            if not is_torchs and not module.name.endswith("__main__"):
                import_module(module.name)
    found: set[type[MemgateError]] = {MemgateError, *_subclasses(MemgateError)}
    return sorted(found, key=lambda kind: kind.__name__)


def _subclasses(kind: type[MemgateError]) -> Iterator[type[MemgateError]]:
    for sub in kind.__subclasses__():
        if sub.__module__.startswith("memgate"):
            yield sub
            yield from _subclasses(sub)
