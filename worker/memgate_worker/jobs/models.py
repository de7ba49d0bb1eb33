"""ModelSpec -> a module on the device, its weights never computed.

The model is built on the CPU and then moved, as a script that says ``model.to("cuda")`` does: that
is the order in which parameters are allocated. Constructors may compute with small tensors (widths
of a RegNet) and get right answers; the filling of weights is left out, so that their pages are
never touched and a model of any size needs no memory on the host.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from memgate.errors import InputError
from memgate.jobspec import ModelSource, ModelSpec
from memgate_worker.jobs.failures import is_out_of_host_memory

#: public name -> class and configuration, as their authors published them
_PUBLIC_CONFIGS = Path(__file__).with_name("public_configs.json")

#: tensors of at least this many elements are weights; what constructors compute with is smaller
_WEIGHT_ELEMENTS = 4096

_FILLING = frozenset(
    {
        "normal_",
        "uniform_",
        "fill_",
        "zero_",
        "erfinv_",
        "mul_",
        "add_",
        "sub_",
        "div_",
        "clamp_",
        "copy_",
        "bernoulli_",
        "exponential_",
    }
)


#: questions about values: initialisers draw again until all of them lie in some range
_COMPARING = frozenset({"lt", "le", "gt", "ge", "eq", "ne", "isnan", "isinf"})


class _WithoutFilling(TorchDispatchMode):
    """Leaves the contents of large CPU tensors as they are, whatever their type becomes.

    Nothing is wrong with any of them, whoever asks.
    """

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        target = args[0] if args else None
        named = kwargs or {}
        if (
            isinstance(target, torch.Tensor)
            and target.device.type == "cpu"
            and target.numel() >= _WEIGHT_ELEMENTS
        ):
            name = func.overloadpacket.__name__
            if name in _FILLING:
                return target
            if name in _COMPARING:
                return torch.zeros_like(target, dtype=torch.bool)
            if name == "_to_copy" and named.get("device") is None:
                return torch.empty_like(target, dtype=named.get("dtype"))
        return func(*args, **named)


def convert(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Change the type of a model's weights without computing them."""
    with _WithoutFilling():
        return model.to(dtype)


def build_model(spec: ModelSpec) -> nn.Module:
    """Build a model on the CPU, in training mode.

    Raises:
        InputError: if there is no such model, or it cannot be built as asked.
    """
    make = _BUILDERS[spec.source]
    try:
        with _WithoutFilling():
            model = make(spec)
    except InputError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
        if is_out_of_host_memory(error):
            raise
        label = spec.name or spec.class_name
        raise InputError(f"model: {spec.source} cannot build {label!r}: {error}") from error
    return model.train()


def own_input_shape(model: nn.Module) -> tuple[int, ...]:
    """Return the shape of a sample that timm trains a model of its own with."""
    import timm

    return tuple(timm.data.resolve_model_data_config(model)["input_size"])


def _from_torchvision(spec: ModelSpec) -> nn.Module:
    import torchvision

    model: nn.Module = torchvision.models.get_model(spec.name, weights=None, **spec.kwargs)
    return model


def _from_timm(spec: ModelSpec) -> nn.Module:
    import timm

    model: nn.Module = timm.create_model(spec.name, pretrained=False, **spec.kwargs)
    return model


def _from_transformers(spec: ModelSpec) -> nn.Module:
    import transformers

    class_name, settings = find_config(spec)
    model_class = getattr(transformers, class_name)
    attention = settings.pop("attn_implementation", None)
    chosen = {} if attention is None else {"attn_implementation": attention}
    model: nn.Module = model_class._from_config(model_class.config_class(**settings), **chosen)
    return model


def find_config(spec: ModelSpec) -> tuple[str, dict[str, Any]]:
    """Return the class of a transformers model and what its configuration is given.

    A public model may be named without its owner, as ``gpt2``.

    Raises:
        InputError: if the model is named and our table has no such name.
    """
    if spec.class_name is not None:
        return spec.class_name, dict(spec.config)
    public = json.loads(_PUBLIC_CONFIGS.read_text())
    names = [name for name in public if spec.name in (name, name.partition("/")[2])]
    if len(names) != 1:
        near = get_close_matches(str(spec.name), public, n=3) or sorted(public)
        raise InputError(
            f"model.name is {spec.name!r}: not in the table of public models, which has"
            f" {', '.join(near)}; give 'class' and 'config' instead"
        )
    entry = public[names[0]]
    return entry["class"], entry["config"] | spec.config


_BUILDERS: dict[ModelSource, Callable[[ModelSpec], nn.Module]] = {
    ModelSource.TORCHVISION: _from_torchvision,
    ModelSource.TIMM: _from_timm,
    ModelSource.TRANSFORMERS: _from_transformers,
}
