"""QuantizationSpec, model on the CPU -> the model on its device, with weights of torchao.

Each weight is quantised when it is there, before the next one comes, as transformers loads a model
with a configuration of torchao. Layers stay what they are; only their weights are others.
"""

from __future__ import annotations

import importlib
from typing import Any

from torch import nn

from memgate.errors import UnsupportedJobError
from memgate.jobspec import QuantizationMethod, QuantizationSpec
from memgate_worker.jobs.libraries import need_library
from memgate_worker.jobs.quantization import is_kept, kept_as_they_are

_FIELD = "quantization"
_OF_NF4 = "torchao.quantization.quantize_.workflows.nf4.nf4_tensor"
#: where it was before torchao 0.17
_OLDER_OF_NF4 = "torchao.dtypes.nf4tensor"

_CONFIGS = {
    QuantizationMethod.INT8: "Int8WeightOnlyConfig",
    QuantizationMethod.FP8: "Float8WeightOnlyConfig",
}


def quantize_by_torchao(model: nn.Module, spec: QuantizationSpec, device: str) -> None:
    """Move a model to its device, and have torchao quantise the weights of its linear layers.

    Raises:
        UnsupportedJobError: of a model that is not of transformers, or has no such layers.
        LibraryMissingError: if the runtime lacks torchao.
    """
    need_library("torchao.quantization", _FIELD)
    if not hasattr(model, "config"):
        raise UnsupportedJobError(
            f"{_FIELD} is known of transformers' models, and {type(model).__name__} is not one"
        )
    kept = kept_as_they_are(model)
    num_quantized = 0
    for name, module in model.named_modules():
        if next(module.children(), None) is not None:
            continue
        module.to(device)
        if type(module) is nn.Linear and not is_kept(name, kept):
            _quantize(module, spec.method)
            num_quantized += 1
    if not num_quantized:
        raise UnsupportedJobError(
            f"{_FIELD}: torchao quantises layers of the class torch.nn.Linear, and"
            f" {type(model).__name__} has none besides its head; use bitsandbytes"
        )


def _quantize(layer: Any, method: QuantizationMethod) -> None:
    if method is QuantizationMethod.NF4:
        packed = _find_nf4().to_nf4(layer.weight.data)
        layer.weight = nn.Parameter(packed, requires_grad=False)
        return
    quantization = need_library("torchao.quantization", _FIELD)
    quantization.quantize_(layer, getattr(quantization, _CONFIGS[method])())


def _find_nf4() -> Any:
    try:
        return importlib.import_module(_OF_NF4)
    except ModuleNotFoundError:
        return need_library(_OLDER_OF_NF4, _FIELD)
