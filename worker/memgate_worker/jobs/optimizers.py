"""OptimizerSpec, model -> the optimizers that train it: one, or one for matrices and another."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from memgate.errors import InputError, UnsupportedJobError
from memgate.jobspec import DistributedSpec, OffloadSpec, OptimizerSpec, Strategy
from memgate.mistakes import Mistake, show_value, unknown_field, unknown_name
from memgate_worker.jobs.arguments import declared_arguments
from memgate_worker.jobs.compiling import need_triton
from memgate_worker.jobs.distributed.dividing import make_divided
from memgate_worker.jobs.distributed.tensors import group_alike
from memgate_worker.jobs.libraries import need_library
from memgate_worker.jobs.offloading import make_offloaded, make_on_the_host

_Make = Callable[[Any, list[Any], dict[str, Any]], Optimizer]

#: where libraries besides torch have their optimizers
_MODULES = {"bitsandbytes": "bitsandbytes.optim", "torchao": "torchao.optim"}

#: of other libraries, whose names in trainers do not say whose they are: adamw_8bit
_OF_OTHERS = ("bitsandbytes.AdamW8bit", "bitsandbytes.PagedAdamW8bit")

#: has its steps compiled
_COMPILED = "torchao"

_NO_ARGUMENT = "this optimizer takes no such argument"

#: takes matrices alone, so that the other parameters need another optimizer
_OF_MATRICES = "Muon"

#: of adapters: made by a function of peft, which freezes what is not trained
_OF_ADAPTERS = {"peft.LoraFAOptimizer": "create_lorafa_optimizer"}

#: for gradients that are sparse tensors, which no model of ours makes
_OF_SPARSE_GRADIENTS = "SparseAdam"


def make_optimizers(
    spec: OptimizerSpec,
    model: nn.Module,
    offload: OffloadSpec | None = None,
    divided: DistributedSpec | None = None,
) -> list[Optimizer]:
    """Make the optimizers of a model's parameters.

    Args:
        spec: which, and their arguments.
        model: on its device.
        offload: whether their states are in the host's memory.
        divided: whether their states are divided among ranks.

    Raises:
        InputError: if there is no such optimizer, or it takes no such argument.
        LibraryMissingError: if the runtime lacks its library.
    """
    if spec.name in _OF_ADAPTERS:
        return [_make_of_adapter(spec, model)]
    chosen = find_optimizer(spec.name)
    make = _how(offload, divided)
    parameters = [one for one in model.parameters() if one.requires_grad]
    if spec.name != _OF_MATRICES:
        if spec.companion is not None:
            rule = f"{spec.name} takes all parameters"
            raise InputError.from_mistakes(
                Mistake(
                    field="optimizer.companion",
                    value=show_value(spec.companion.name),
                    rule=rule,
                    next_step="leave it out",
                )
            )
        return [_make(chosen, spec, parameters, "optimizer", make)]
    matrices = _hidden_matrices(model)
    others = [one for one in parameters if not any(one is matrix for matrix in matrices)]
    companion = spec.companion or OptimizerSpec(name="AdamW")
    groups = (
        (chosen, spec, matrices, "optimizer"),
        (find_optimizer(companion.name), companion, others, "optimizer.companion"),
    )
    return [
        _make(kind, of_kind, trained, field, make)
        for kind, of_kind, trained, field in groups
        if trained
    ]


def _make_of_adapter(spec: OptimizerSpec, model: nn.Module) -> Optimizer:
    """Make an optimizer of peft, which takes the model itself and the adapter's own settings."""
    config: Any = getattr(model, "peft_config", {}).get("default")
    if getattr(config, "lora_alpha", None) is None:
        mistake = Mistake(
            field="optimizer.name",
            value=show_value(spec.name),
            rule="it trains an adapter of LoRA, and the job has none",
            next_step="add 'lora', or use AdamW",
        )
        raise InputError.from_mistakes(mistake)
    make = getattr(need_library("peft.optimizers", "optimizer"), _OF_ADAPTERS[spec.name])
    settings = {"r": config.r, "lora_alpha": config.lora_alpha, "lr": 1e-3} | spec.kwargs
    known = sorted(declared_arguments(make) - {"model"})
    unknown = [
        unknown_field(f"optimizer.kwargs.{name}", value, known, rule=_NO_ARGUMENT)
        for name, value in spec.kwargs.items()
        if name not in known
    ]
    if unknown:
        raise InputError.from_mistakes(*unknown)
    optimizer: Optimizer = make(model, **settings)
    return optimizer


def needs_closure(optimizer: type[Optimizer]) -> bool:
    """Say whether a step calls the model itself, perhaps many times (LBFGS)."""
    step = inspect.signature(optimizer.step).parameters
    return "closure" in step and step["closure"].default is inspect.Parameter.empty


def _hidden_matrices(model: nn.Module) -> list[nn.Parameter]:
    """Return what Muon is for: matrices, but not the tables of embeddings or the output layer."""
    tables = {module.weight for module in model.modules() if isinstance(module, nn.Embedding)}
    head = getattr(model, "get_output_embeddings", lambda: None)()
    tables |= {head.weight} if head is not None else set()
    return [one for one in model.parameters() if one.dim() == 2 and one not in tables]


def find_optimizer(name: str) -> type[Optimizer]:
    """Return the class of an optimizer.

    Raises:
        InputError: if there is no such optimizer.
        LibraryMissingError: if the runtime lacks its library.
    """
    library, _, class_name = name.rpartition(".")
    if library not in ("", *_MODULES):
        rule = "optimizers are of torch.optim, bitsandbytes or torchao"
        near = ("AdamW", *(f"{one}.AdamW8bit" for one in _MODULES), *_OF_ADAPTERS)
        raise InputError.from_mistakes(unknown_name("optimizer.name", name, near, rule=rule))
    module = need_library(_MODULES[library], "optimizer") if library else torch.optim
    if library == _COMPILED:
        need_triton("optimizer")
    known = {
        f"{library}.{one}" if library else one: member
        for one, member in vars(module).items()
        if isinstance(member, type)
        and issubclass(member, Optimizer)
        and member is not Optimizer
        and one != "Optimizer"
    }
    if name not in known:
        rule = f"{library or 'torch.optim'} has no such optimizer"
        named = known if library else (*known, *_OF_OTHERS)
        raise InputError.from_mistakes(unknown_name("optimizer.name", name, named, rule=rule))
    if class_name == _OF_SPARSE_GRADIENTS:
        raise UnsupportedJobError(
            f"optimizer: {name} is for sparse gradients, and memgate's own training loop makes"
            " none; ask about your own script instead: memgate run -- python train.py"
        )
    return known[name]


def _make(
    chosen: type[Optimizer],
    spec: OptimizerSpec,
    parameters: Iterable[nn.Parameter],
    field: str,
    make: _Make,
) -> Optimizer:
    parameters = list(parameters)
    kwargs = {"lr": 1e-3} | spec.kwargs
    known = sorted(declared_arguments(chosen) - {"params"})
    unknown = [
        unknown_field(f"{field}.kwargs.{name}", value, known, rule=_NO_ARGUMENT)
        for name, value in kwargs.items()
        if name not in known
    ]
    if unknown:
        raise InputError.from_mistakes(*unknown)
    try:
        return make(chosen, parameters, kwargs)
    except (TypeError, ValueError, RuntimeError) as error:
        if _takes(chosen, kwargs, parameters):
            raise  # it rejects this model's parameters: our loop gives it all of them
        given = show_value(spec.kwargs)
        mistake = Mistake(field=f"{field}.kwargs", value=given, rule=str(error))
        raise InputError.from_mistakes(mistake) from error


def _how(offload: OffloadSpec | None, divided: DistributedSpec | None) -> _Make:
    """Return what makes an optimizer of a class, of parameters and arguments."""
    if offload is not None and offload.optimizer:
        return make_offloaded
    if divided is not None and divided.strategy is Strategy.ZERO1:
        return make_divided
    if divided is not None and divided.cpu_offload:
        return make_on_the_host
    if divided is not None and divided.tensor_degree > 1:
        return lambda chosen, parameters, kwargs: chosen(group_alike(parameters), **kwargs)
    return lambda chosen, parameters, kwargs: chosen(parameters, **kwargs)


def _takes(optimizer: Any, kwargs: dict[str, Any], parameters: list[nn.Parameter]) -> bool:
    """Say whether an optimizer accepts some arguments, given a parameter that any accepts."""
    like = parameters[0] if parameters else torch.zeros(1)
    try:
        optimizer([nn.Parameter(like.new_zeros(2, 2))], **kwargs)
    except (TypeError, ValueError, RuntimeError):
        return False
    return True
