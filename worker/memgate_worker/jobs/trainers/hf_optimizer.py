"""OptimizerSpec -> the class and arguments that transformers' Trainer makes an optimizer from.

Trainer makes parameter groups itself, and for optimizers that it has a name for it knows arguments:
which implementation of AdamW, which states stay in 32 bits. Those are used, with what the spec says
besides. What it has no name for is made from its class.
"""

from __future__ import annotations

from typing import Any

from memgate.errors import InputError, UnsupportedJobError
from memgate.jobspec import JobSpec, OptimizerSpec
from memgate.mistakes import unknown_field
from memgate_worker.jobs.arguments import declared_arguments
from memgate_worker.jobs.optimizers import find_optimizer, needs_closure

#: what Trainer calls an optimizer; that of AdamW is Trainer's default, whichever that is
_NAMES = {
    "SGD": "sgd",
    "Adagrad": "adagrad",
    "RMSprop": "rmsprop",
    "bitsandbytes.AdamW8bit": "adamw_bnb_8bit",
    "bitsandbytes.PagedAdamW": "paged_adamw_32bit",
    "bitsandbytes.PagedAdamW32bit": "paged_adamw_32bit",
    "bitsandbytes.PagedAdamW8bit": "paged_adamw_8bit",
    "bitsandbytes.Lion": "lion_32bit",
    "bitsandbytes.Lion8bit": "lion_8bit",
    "bitsandbytes.PagedLion": "paged_lion_32bit",
    "bitsandbytes.PagedLion8bit": "paged_lion_8bit",
}
_DEFAULT = "AdamW"

#: two ways to compute the same step: one that is asked for takes the other's place
_IMPLEMENTATIONS = ("fused", "foreach")

_NO_ARGUMENT = "this optimizer takes no such argument"


def make_optimizer_factory(spec: JobSpec, trainer_class: type[Any]) -> type[Any]:
    """Return a trainer that asks the spec for its optimizer's class and arguments.

    Raises:
        InputError: if there is no such optimizer, or it takes no such argument.
        UnsupportedJobError: if Trainer cannot use it.
    """
    wanted = spec.optimizer
    chosen = find_optimizer(wanted.name)
    if needs_closure(chosen) or wanted.companion is not None or wanted.name == "Muon":
        raise UnsupportedJobError(
            f"optimizer: {spec.trainer.full_name} has one optimizer that makes steps by itself, and"
            f" {wanted.name} needs more than that; use the trainer 'plain'"
        )

    class Factory(trainer_class):
        @staticmethod
        def get_optimizer_cls_and_kwargs(args: Any, model: Any = None) -> tuple[Any, Any]:
            named = _as_named(trainer_class, wanted, args, model)
            known_class, known = named if named is not None else (chosen, {"lr": 1e-3})
            _check(wanted, chosen)
            return known_class, _merge(known, wanted.kwargs)

    return Factory


def _as_named(
    trainer_class: type[Any], wanted: OptimizerSpec, args: Any, model: Any
) -> tuple[Any, dict[str, Any]] | None:
    """Return what Trainer itself would use; None if it has no name for it."""
    if wanted.name == _DEFAULT:
        asked = args
    elif wanted.name in _NAMES:
        asked = _renamed(args, _NAMES[wanted.name])
    else:
        return None
    found, known = trainer_class.get_optimizer_cls_and_kwargs(asked, model)
    return found, dict(known)


def _renamed(args: Any, name: str) -> Any:
    """Return arguments that only Trainer's choice of an optimizer sees."""
    from transformers.training_args import OptimizerNames

    return _Changed(args, OptimizerNames(name))


class _Changed:
    """Arguments with another name of an optimizer; to copy them would set up the device again."""

    def __init__(self, args: Any, optim: Any) -> None:
        self._args = args
        self.optim = optim

    def __getattr__(self, name: str) -> Any:
        return getattr(self._args, name)


def _merge(known: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    if any(name in given for name in _IMPLEMENTATIONS):
        known = {name: value for name, value in known.items() if name not in _IMPLEMENTATIONS}
    return known | given


def _check(wanted: OptimizerSpec, chosen: type[Any]) -> None:
    known = sorted(declared_arguments(chosen) - {"params"})
    mistakes = [
        unknown_field(f"optimizer.kwargs.{name}", value, known, rule=_NO_ARGUMENT)
        for name, value in wanted.kwargs.items()
        if name not in known
    ]
    if mistakes:
        raise InputError.from_mistakes(*mistakes)
