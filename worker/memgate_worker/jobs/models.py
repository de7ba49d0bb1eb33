"""ModelSpec -> a module on the device, its weights never computed.

The model is built on the CPU and then moved, as a script that says ``model.to("cuda")`` does: that
is the order in which parameters are allocated. Constructors may compute with small tensors (widths
of a RegNet) and get correct results; filling weights is left out, so that their pages are never
touched and a model of any size needs no memory on the host.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from memgate.errors import InputError, MemgateError, UnsupportedJobError
from memgate.jobspec import JobSpec, Loss, ModelSource, ModelSpec
from memgate.mistakes import Mistake, show_value
from memgate_worker.hook.memgate_hook.blank import blank
from memgate_worker.jobs.attention import choose_attention
from memgate_worker.jobs.configs import build_transformers
from memgate_worker.jobs.constructors import build_timm, build_torchvision
from memgate_worker.jobs.diffusion import build_diffusers
from memgate_worker.jobs.encoders import build_encoder
from memgate_worker.jobs.failures import is_out_of_host_memory
from memgate_worker.jobs.seal import SealedError

#: tensors of at least this many elements are weights; what constructors compute with is smaller
_WEIGHT_ELEMENTS = 4096

_FILLING = frozenset(
    {"normal_", "uniform_", "fill_", "zero_", "copy_", "bernoulli_", "exponential_"}
)
#: what follows a fill until the values are as they should be
_ADJUSTING = frozenset({"erfinv_", "mul_", "add_", "sub_", "div_", "clamp_"})

#: what makes a new tensor of zeros, as a blank one is, by where its size is given
_MAKING = {"zeros": 0, "new_zeros": 1}

#: questions about values: initialisers redraw until all of them are in some range
_COMPARING = frozenset({"lt", "le", "gt", "ge", "eq", "ne", "isnan", "isinf"})

#: and what puts such answers together
_JOINING = frozenset({"bitwise_or", "bitwise_and", "logical_or", "logical_and"})


class WithoutFilling(TorchDispatchMode):
    """Leaves large CPU tensors blank, whatever they are filled with and their type becomes.

    Any check of their values passes.
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
        size = _size_of_new(func, args, named)
        if size is not None:
            return blank(torch.empty(size, **_kind_of_new(target, named)))
        if (
            isinstance(target, torch.Tensor)
            and target.device.type == "cpu"
            and target.numel() >= _WEIGHT_ELEMENTS
        ):
            name = func.overloadpacket.__name__
            if name in _FILLING:
                return blank(target)
            if name in _ADJUSTING:
                return target
            if name in _COMPARING or (name in _JOINING and target.dtype is torch.bool):
                return blank(torch.empty_like(target, dtype=torch.bool))
            if name == "clone":
                laid_out = named.get("memory_format") or torch.preserve_format
                return blank(torch.empty_like(target, memory_format=laid_out))
            if name == "_to_copy" and named.get("device") is None:
                return blank(torch.empty_like(target, dtype=named.get("dtype")))
        return func(*args, **named)


def _size_of_new(func: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Sequence[int] | None:
    """Return the size of a large tensor of zeros that a function is to make on the CPU."""
    place = _MAKING.get(func.overloadpacket.__name__)
    if place is None:
        return None
    like = args[0].device if isinstance(args[0], torch.Tensor) else "cpu"  # of new_zeros
    if torch.device(named.get("device") or like).type != "cpu":
        return None
    size: Sequence[int] = args[place]
    return size if math.prod(size) >= _WEIGHT_ELEMENTS else None


def _kind_of_new(like: Any, named: Mapping[str, Any]) -> dict[str, Any]:
    """Return of which type a new tensor is, and how it is laid out."""
    kind = {name: named[name] for name in ("dtype", "layout") if named.get(name) is not None}
    return {"dtype": like.dtype} | kind if isinstance(like, torch.Tensor) else kind


def convert(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Change the type of a model's weights without computing them."""
    with WithoutFilling():
        return model.to(dtype)


def build_model(spec: ModelSpec, *, bare: bool = False) -> nn.Module:
    """Build a model on the CPU, in training mode; ``bare``: without a head, for embeddings.

    Raises:
        InputError: if there is no such model, or it cannot be built as asked.
        UnsupportedJobError: if it cannot be built as it is by default.
    """
    make = build_encoder if bare else _BUILDERS[spec.source]
    try:
        with WithoutFilling():
            model = make(spec)
    except (MemgateError, ImportError):
        raise
    except Exception as error:
        if is_out_of_host_memory(error):
            raise
        raise _cannot_build(spec, error) from error
    return model.train()


def build_for(job: JobSpec) -> nn.Module:
    """Build the model of a job, as its loss and its attention need it.

    Raises:
        InputError: if there is no such model, or it cannot be built as asked.
        JobFailedError: if the GPU has no kernels for its attention.
        LibraryMissingError: if the runtime lacks a library that it needs.
    """
    return build_model(choose_attention(job), bare=job.loss is Loss.CONTRASTIVE)


def _cannot_build(spec: ModelSpec, error: Exception) -> MemgateError:
    """Say that a library refuses to build a model, in the library's own words.

    What the caller gave may be the reason; where nothing was given, the library cannot build its
    own model as it is.
    """
    given = spec.config if spec.source.has_configs else spec.kwargs
    said = " ".join(str(error).split()) or type(error).__name__
    if isinstance(error, SealedError):
        said = f"{said}, and nothing is read from a file or a server while a model is built"
    if not given and spec.class_name is not None:
        return UnsupportedJobError(
            f"{spec.source} cannot build {spec.class_name} with the configuration that it has by"
            f" default: {said}; give 'model.config' as it is published with the model"
        )
    made_of = f" from {show_value(given)}" if given else ""
    mistake = Mistake(
        field="model",
        value=show_value(spec.name or spec.class_name),
        rule=f"{spec.source} cannot build it{made_of}: {said}",
    )
    return InputError.from_mistakes(mistake)


def own_input_shape(model: nn.Module) -> tuple[int, ...]:
    """Return the shape of a sample with which timm trains one of its models."""
    import timm

    return tuple(timm.data.resolve_model_data_config(model)["input_size"])


_BUILDERS: dict[ModelSource, Callable[[ModelSpec], nn.Module]] = {
    ModelSource.TORCHVISION: build_torchvision,
    ModelSource.TIMM: build_timm,
    ModelSource.TRANSFORMERS: build_transformers,
    ModelSource.DIFFUSERS: build_diffusers,
}
