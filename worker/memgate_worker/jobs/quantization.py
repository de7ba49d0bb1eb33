"""QuantizationSpec, model on the CPU -> the model with layers of bitsandbytes.

Their weights are quantised when they are moved to the device, one after the other, as they are
when transformers loads a model.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from memgate.errors import UnsupportedJobError
from memgate.jobspec import QuantizationMethod, QuantizationSpec
from memgate_worker.jobs.libraries import need_library
from memgate_worker.jobs.models import WithoutFilling


def quantize(model: nn.Module, spec: QuantizationSpec, compute: torch.dtype) -> nn.Module:
    """Put layers of bitsandbytes in the place of linear ones.

    Raises:
        UnsupportedJobError: of a model that is not of transformers.
        LibraryMissingError: if the runtime lacks bitsandbytes.
    """
    bnb = need_library("bitsandbytes", "quantization").nn
    if not hasattr(model, "is_loaded_in_4bit") and not hasattr(model, "config"):
        raise UnsupportedJobError(
            f"quantization is known of transformers' models, and {type(model).__name__} is not one"
        )
    kept = kept_as_they_are(model)
    for name, module in list(model.named_modules()):
        for child_name, child in list(module.named_children()):
            full_name = f"{name}.{child_name}" if name else child_name
            if _is_linear(child) and not is_kept(full_name, kept):
                setattr(module, child_name, _quantized(bnb, child, spec, compute))
    is_4bit = spec.method is not QuantizationMethod.INT8
    # As transformers marks them; peft prepares what is marked.
    setattr(model, "is_quantized", True)  # noqa: B010  a module takes no attribute of this type
    setattr(model, "is_loaded_in_4bit" if is_4bit else "is_loaded_in_8bit", True)
    _note_type(model, compute)
    return model


def tell_trainers(model: nn.Module, spec: QuantizationSpec, compute: torch.dtype) -> None:
    """Give a quantised model on its device what transformers leaves on one that it has loaded.

    Trainers ask it whether the model can be trained, and leave it where it is. Call it before an
    adapter is added.
    """
    library = need_library("transformers", "quantization")
    quantizers = need_library("transformers.quantizers.auto", "quantization")
    is_4bit = spec.method is not QuantizationMethod.INT8
    four = {
        "bnb_4bit_quant_type": spec.method.value,
        "bnb_4bit_use_double_quant": spec.double,
        "bnb_4bit_compute_dtype": compute,
    }
    config = library.BitsAndBytesConfig(
        load_in_4bit=is_4bit, load_in_8bit=not is_4bit, **(four if is_4bit else {})
    )
    known: Any = model
    known.hf_quantizer = quantizers.AutoHfQuantizer.from_config(config)
    known.quantization_method = config.quant_method
    known.config.quantization_config = config


def _note_type(model: nn.Module, compute: torch.dtype) -> None:
    """Have configurations say what weights are unpacked to: flash attention is computed in it."""
    for config in (module.config for module in model.modules() if hasattr(module, "config")):
        config._is_quantized = True
        config.dtype = config._pre_quantization_dtype = compute


def prepare(model: nn.Module, *, checkpointing: bool) -> nn.Module:
    """Make a quantised model ready to be trained with an adapter, as peft does."""
    peft = need_library("peft", "lora")
    ready: nn.Module = peft.prepare_model_for_kbit_training(
        model, use_gradient_checkpointing=checkpointing
    )
    return ready


def kept_as_they_are(model: nn.Module) -> list[str]:
    """Return the names of what transformers does not quantise: the head, and what it shares."""
    quantizers = need_library("transformers.quantizers.base", "quantization")
    if hasattr(quantizers, "get_keys_to_not_convert"):
        find = quantizers.get_keys_to_not_convert
    else:
        integrations = need_library("transformers.integrations", "quantization")
        find = integrations.get_keys_to_not_convert
    with WithoutFilling():  # older versions copy the whole model to look at it
        return list(find(model))


def is_kept(name: str, kept: list[str]) -> bool:
    """Say whether a layer is one of those that stay as they are, or in one."""
    return any(
        name == one or name.startswith(f"{one}.") or f".{one}." in f".{name}." for one in kept
    )


def _is_linear(module: nn.Module) -> bool:
    from transformers.pytorch_utils import Conv1D

    return type(module) in (nn.Linear, Conv1D)


def _quantized(bnb: Any, module: Any, spec: QuantizationSpec, compute: torch.dtype) -> nn.Module:
    weight = module.weight.data
    if not isinstance(module, nn.Linear):  # Conv1D has it the other way round
        weight = weight.t().contiguous()
    outputs, inputs = weight.shape
    with torch.device("meta"):  # its own weights are thrown away
        layer = _empty_layer(bnb, inputs, outputs, module.bias is not None, spec, compute)
    if spec.method is QuantizationMethod.INT8:
        layer.weight = bnb.Int8Params(weight, requires_grad=False, has_fp16_weights=False)
    else:
        layer.weight = bnb.Params4bit(
            weight,
            requires_grad=False,
            quant_type=spec.method.value,
            compress_statistics=spec.double,
            module=layer,
        )
    if module.bias is not None:
        layer.bias = module.bias
    layer.requires_grad_(False)
    return layer


def _empty_layer(
    bnb: Any,
    inputs: int,
    outputs: int,
    has_bias: bool,
    spec: QuantizationSpec,
    compute: torch.dtype,
) -> Any:
    if spec.method is QuantizationMethod.INT8:
        return bnb.Linear8bitLt(inputs, outputs, has_bias, has_fp16_weights=False, threshold=6.0)
    return bnb.Linear4bit(
        inputs,
        outputs,
        has_bias,
        compute_dtype=compute,
        compress_statistics=spec.double,
        quant_type=spec.method.value,
    )
