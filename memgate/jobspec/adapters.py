"""What is trained beside a model whose own weights are frozen, and how those are kept."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag

from memgate.jobspec.parts import Part, Settings, Truth
from memgate.mistakes import RuleError

#: names, or one that stands for several
_Layers = Annotated[
    Annotated[tuple[str, ...], Tag("~names")] | Annotated[str, Tag("~name")],
    Discriminator(lambda value: "~name" if isinstance(value, str) else "~names"),
]


class LoraSpec(Part):
    """A small model beside the frozen one, which alone is trained: an adapter of peft."""

    method: Annotated[str, Field(examples=["lora", "dora", "ia3", "vera"])] = "lora"
    """By peft's own name; ``dora`` and ``rslora`` are LoRA with the switch of that name."""
    rank: Annotated[int, Field(strict=True, ge=1, le=1 << 16)] | None = None
    """8 unless given, for methods that have one."""
    alpha: Annotated[float, Field(gt=0)] | None = None
    """Scales what is added; it changes no memory."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Of what the adapter is given; it keeps a mask for each layer."""
    target_modules: _Layers | None = None
    """Names of layers, or ``all-linear``; the method's own choice for the model unless given."""
    kwargs: Settings = Field(default_factory=dict)
    """Passed to the configuration of the method. With ``autocast_adapter_dtype: false`` an adapter
    in 16 bits stays so, where the trainer is ``plain`` or ``lightning``."""


class QuantizationMethod(StrEnum):
    """How the frozen weights of an adapter's model are kept."""

    NF4 = "nf4"
    FP4 = "fp4"
    INT8 = "int8"
    FP8 = "fp8"


class QuantizationLibrary(StrEnum):
    """What keeps them so."""

    BITSANDBYTES = "bitsandbytes"
    TORCHAO = "torchao"


#: what each can do with the weights that an adapter of peft is beside
_METHODS = {
    QuantizationLibrary.BITSANDBYTES: (
        QuantizationMethod.NF4,
        QuantizationMethod.FP4,
        QuantizationMethod.INT8,
    ),
    QuantizationLibrary.TORCHAO: (
        QuantizationMethod.NF4,
        QuantizationMethod.INT8,
        QuantizationMethod.FP8,
    ),
}


class QuantizationSpec(Part):
    """Weights in few bits, by bitsandbytes or torchao."""

    method: QuantizationMethod
    """4 bits that follow a normal distribution, 4-bit floats, 8 bits, or (torchao) 8-bit floats."""
    library: QuantizationLibrary = QuantizationLibrary.BITSANDBYTES
    """What keeps weights in few bits."""
    double: Truth = False
    """The scales of 4-bit weights are quantised, too; torchao's NF4 always does so."""
    compute: Literal["fp32", "fp16", "bf16"] | None = None
    """The type that weights are unpacked to; that of the job's precision unless given. Not for
    bitsandbytes' ``int8``, which has one type."""
    prepare: Truth = True
    """As peft prepares models of bitsandbytes: what is not quantised becomes fp32."""

    def model_post_init(self, _: Any) -> None:
        """Check that the library has the method, and the method what is asked of it."""
        if self.double and self.method in (QuantizationMethod.INT8, QuantizationMethod.FP8):
            rule = f"double: the scales of 4-bit weights are quantised, and {self.method} has 8"
            raise RuleError(rule, "leave it out")
        is_own = self.library is QuantizationLibrary.BITSANDBYTES
        if self.compute is not None and is_own and self.method is QuantizationMethod.INT8:
            rule = "compute: bitsandbytes' 8-bit layers compute in fp16, whatever they are given"
            raise RuleError(rule, "leave it out")
        known = _METHODS[self.library]
        if self.method not in known:
            rule = f"{self.library} has no {self.method} that can be trained with an adapter"
            others = [one for one, methods in _METHODS.items() if self.method in methods]
            raise RuleError(rule, f"{', '.join(others)} has; or give {', '.join(known)}")


def _in_full(given: object) -> object:
    return {"method": given} if isinstance(given, str) else given


#: an object, or its method alone
Quantization = Annotated[
    QuantizationSpec,
    BeforeValidator(_in_full, json_schema_input_type=QuantizationMethod | QuantizationSpec),
]
