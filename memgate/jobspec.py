"""What a training job is: the request of every door, command line, HTTP and queue.

JSON or YAML becomes a ``JobSpec``, and wrong fields become errors that name them. Building the
model and running the loop is the worker's business.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
)

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.errors import (
    AllocatorConfigError,
    InputError,
    UnsupportedAllocatorError,
    UnsupportedJobError,
)
from memgate.mistakes import Mistake, RuleError, show_value
from memgate.validation import validate

#: the refusal of a question about the inference of a job spec
INFERENCE_OF_A_JOB = "inference is for traces; a job spec describes training"

#: and that about one of its devices
DEVICE_OF_A_JOB = (
    "device is {device}: only memory snapshots and traces of GPUs have several; leave it out"
)

#: far above what people train with, far below what would keep a worker busy forever or overflow
MAX_SIZE = 1 << 20
MAX_ACCUMULATION_STEPS = 1024
MAX_DIMENSIONS = 8
MAX_TENSORS = 32

#: of ``config`` and ``kwargs``: the length of their JSON, and the largest whole number in them. A
#: published configuration may name a thousand classes, twice
MAX_SETTINGS_LENGTH = 128 * 1024
MAX_SETTINGS_NUMBER = 1 << 31

# Numbers and booleans must be just that, in JSON and YAML alike: "32" is not 32, nor is true 1.
_Size = Annotated[int, Field(strict=True, ge=1, le=MAX_SIZE)]
_Truth = Annotated[bool, Field(strict=True)]


def _check_settings(settings: dict[str, Any]) -> dict[str, Any]:
    try:
        length = len(json.dumps(settings, default=str))
        _check_numbers(settings)
    except RecursionError:
        raise RuleError("it is nested too deeply") from None
    if length > MAX_SETTINGS_LENGTH:
        raise RuleError(
            f"it may have {MAX_SETTINGS_LENGTH:,} characters as JSON, and has {length:,}"
        )
    return settings


def _check_numbers(value: Any) -> None:
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            _check_numbers(part)
    elif isinstance(value, int | float) and abs(value) > MAX_SETTINGS_NUMBER:
        raise RuleError(f"it holds {value}, and no number in it may exceed {MAX_SETTINGS_NUMBER:,}")


#: what is passed on to a constructor
_Settings = Annotated[dict[str, Any], AfterValidator(_check_settings)]


def _check_allocator(text: str) -> str:
    try:
        parse_alloc_conf(text)
    except AllocatorConfigError as error:
        (mistake,) = error.mistakes or (Mistake(field="", value="", rule=error.message),)
        raise RuleError(mistake.rule, mistake.next_step, mistake.near) from None
    except UnsupportedAllocatorError:
        pass  # the text is right; check_supported says that we cannot do it
    return text


#: a ``PYTORCH_ALLOC_CONF`` string
AllocatorText = Annotated[
    str, Field(examples=["expandable_segments:True"]), AfterValidator(_check_allocator)
]


class _Part(BaseModel):
    """Unknown fields are errors; a spec does not change once it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ModelSource(StrEnum):
    """Where a model comes from."""

    TORCHVISION = "torchvision"
    TIMM = "timm"
    TRANSFORMERS = "transformers"


def find_architecture(config: dict[str, Any]) -> str | None:
    """Return the class that a whole ``config.json`` of transformers names, if it is one class."""
    match config.get("architectures"):
        case [str(name)]:
            return name
    return None


class ModelSpec(_Part):
    """Which model, and how it is made. Weights are never downloaded: they do not matter."""

    model_config = ConfigDict(populate_by_name=True)

    source: Annotated[ModelSource, Field(examples=["torchvision"])]
    """The library."""
    name: str | None = None
    """A constructor of torchvision or timm, or a public model in our own table."""
    class_name: Annotated[str | None, Field(alias="class")] = None
    """A class of transformers, such as ``GPT2LMHeadModel``."""
    config: _Settings = {}
    """Passed to that class's configuration; a whole ``config.json`` names its class itself."""
    kwargs: _Settings = {}
    """Passed to the constructor of torchvision or timm."""

    def model_post_init(self, _: Any) -> None:
        """Check that it has what the source needs, and nothing that the source cannot use."""
        if self.source is ModelSource.TRANSFORMERS:
            self._check_transformers()
        elif self.name is None:
            raise RuleError(f"{self.source} takes 'name' and 'kwargs'", "add 'name'")
        elif self.class_name or self.config:
            rule = f"{self.source} takes 'name' and 'kwargs', not 'class' or 'config'"
            raise RuleError(rule, "write what its constructor takes in 'kwargs'")

    @property
    def architecture(self) -> str | None:
        """The class of transformers: as given, or as a whole config.json in ``config`` names it."""
        return self.class_name or find_architecture(self.config)

    @property
    def title(self) -> str:
        """What people call it: its name, or its class."""
        return self.name or self.architecture or self.source

    def _check_transformers(self) -> None:
        rule = "transformers takes 'class' and 'config', or a public 'name'"
        if self.kwargs:
            raise RuleError(rule, "write what is in 'kwargs' in 'config'")
        if self.name is None and self.architecture is None:
            raise RuleError(rule, "add 'class' or 'name', or give a whole config.json as 'config'")
        if self.name is not None and self.class_name is not None:
            raise RuleError(rule, "leave out 'class' or 'name'")


class TensorSpec(_Part):
    """One tensor that a model is given."""

    shape: Annotated[tuple[_Size, ...], Field(max_length=MAX_DIMENSIONS)]
    """Of one sample, without the batch; empty for a number."""
    dtype: Literal["float32", "float16", "bfloat16", "int64", "int32", "uint8", "bool"] = "float32"


class InputSpec(_Part):
    """What a batch is made of: images of a shape, sequences of a length, or tensors by name.

    What is left out follows from the model, where it has a size of its own: images of timm's models
    and of configurations that say how large they are.
    """

    shape: Annotated[tuple[_Size, ...], Field(max_length=MAX_DIMENSIONS)] | None = None
    """Of one sample, without the batch."""
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    sequence_length: _Size | None = None
    """Tokens; of sound and series, samples or frames."""
    tensors: Annotated[dict[str, TensorSpec], Field(max_length=MAX_TENSORS)] = {}
    """What a model of transformers is given, by the names of its arguments, instead of both."""

    def model_post_init(self, _: Any) -> None:
        """Check that tensors are all of it."""
        if self.tensors and not (self.shape is None and self.sequence_length is None):
            raise RuleError(
                "'tensors' are given instead of 'shape' and 'sequence_length'", "leave those out"
            )

    @property
    def is_empty(self) -> bool:
        """Nothing is given: the model's own shape is meant."""
        return self.shape is None and self.sequence_length is None and not self.tensors


class OptimizerSpec(_Part):
    """An optimizer and its arguments."""

    name: Annotated[str, Field(examples=["AdamW", "bitsandbytes.AdamW8bit"])] = "SGD"
    """A class of ``torch.optim``, or one of bitsandbytes or torchao with the library before it."""
    kwargs: _Settings = {}
    """Its arguments, such as ``lr``, ``momentum``, ``foreach``, ``fused``."""
    companion: OptimizerSpec | None = None
    """For the parameters that an optimizer of matrices (Muon) leaves: AdamW unless given."""

    def model_post_init(self, _: Any) -> None:
        """Check that there are two optimizers at most."""
        if self.companion is not None and self.companion.companion is not None:
            raise RuleError("a companion has no companion of its own", "leave that one out")


class LoraSpec(_Part):
    """A small model beside the frozen one, which alone is trained: an adapter of peft."""

    method: Annotated[str, Field(examples=["lora", "dora", "ia3", "vera"])] = "lora"
    """By peft's own name; ``dora`` and ``rslora`` are LoRA with the switch of that name."""
    rank: Annotated[int, Field(strict=True, ge=1, le=1 << 16)] | None = None
    """8 unless given, for methods that have one."""
    alpha: Annotated[float, Field(gt=0)] | None = None
    """Scales what is added; it changes no memory."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Of what the adapter is given; it keeps a mask for each layer."""
    target_modules: tuple[str, ...] | str | None = None
    """Names of layers, or ``all-linear``; the method's own choice for the model unless given."""
    kwargs: _Settings = {}
    """Passed to the configuration of the method."""


class QuantizationMethod(StrEnum):
    """How the frozen weights of an adapter's model are kept."""

    NF4 = "nf4"
    FP4 = "fp4"
    INT8 = "int8"


class QuantizationSpec(_Part):
    """Weights in few bits, by bitsandbytes."""

    method: QuantizationMethod
    """4 bits that follow a normal distribution, 4-bit floats, or 8 bits."""
    double: _Truth = False
    """The scales of 4-bit weights are quantised, too."""
    compute: Literal["fp32", "fp16", "bf16"] | None = None
    """The type that weights are unpacked to; that of the job's precision unless given."""
    prepare: _Truth = True
    """As peft prepares such models: what is not quantised becomes fp32."""


def _in_full(given: object) -> object:
    return {"method": given} if isinstance(given, str) else given


#: an object, or its method alone
_Quantization = Annotated[
    QuantizationSpec,
    BeforeValidator(_in_full, json_schema_input_type=QuantizationMethod | QuantizationSpec),
]


class ZeroGrad(StrEnum):
    """Where in an iteration gradients are dropped. It decides what lives at the peak."""

    ITERATION_START = "iteration_start"
    BEFORE_BACKWARD = "before_backward"
    AFTER_STEP = "after_step"


class Precision(StrEnum):
    """Of weights and of arithmetic; ``tf32`` changes no memory."""

    FP32 = "fp32"
    TF32 = "tf32"
    AMP_FP16 = "amp-fp16"
    AMP_BF16 = "amp-bf16"
    FP16 = "fp16"
    BF16 = "bf16"


class JobSpec(_Part):
    """A training job."""

    model: Annotated[ModelSpec, Field(examples=[{"source": "torchvision", "name": "resnet50"}])]
    """What is trained."""
    input: Annotated[
        InputSpec, Field(examples=[{"shape": [3, 224, 224]}, {"sequence_length": 512}])
    ]
    """How large one sample is."""
    batch_size: Annotated[_Size, Field(examples=[32])]
    """Samples in a batch, of one step of accumulation."""
    loss: Literal["cross_entropy"] = "cross_entropy"
    """Of the outputs and labels; transformers' models compute it themselves from the labels."""
    optimizer: OptimizerSpec = OptimizerSpec()
    """SGD keeps nothing, Adam and AdamW twice the trained weights."""
    zero_grad: ZeroGrad = ZeroGrad.BEFORE_BACKWARD
    """Where in an iteration gradients are dropped; it decides what lives at the peak."""
    iterations: Annotated[int, Field(strict=True, ge=1, le=64)] = 4
    """How many are run; memory rarely grows after the third."""
    precision: Precision = Precision.FP32
    """``amp-``: autocast, weights stay fp32; ``fp16`` and ``bf16``: weights, too."""
    gradient_checkpointing: _Truth = False
    """Compute activations again in the backward pass, instead of keeping them."""
    gradient_accumulation_steps: Annotated[
        int, Field(strict=True, ge=1, le=MAX_ACCUMULATION_STEPS)
    ] = 1
    """Batches for each step of the optimizer."""
    clip_grad_norm: Annotated[float, Field(strict=True, gt=0)] | None = None
    """``torch.nn.utils.clip_grad_norm_`` with this norm, before each step."""
    channels_last: _Truth = False
    """Model and images in the memory format of that name."""
    cudnn_benchmark: _Truth = False
    """``torch.backends.cudnn.benchmark``: cuDNN tries algorithms, which takes workspaces."""
    allocator: AllocatorText = ""
    """What ``PYTORCH_ALLOC_CONF`` would be."""
    runtime: str | None = None
    """The library versions the job runs with, by name; the default is the newest installed."""
    lora: LoraSpec | None = None
    """Train an adapter, and leave the model's own weights as they are."""
    quantization: _Quantization | None = None
    """``nf4``, ``fp4`` or ``int8`` for the frozen weights, or an object that says more."""
    distributed: dict[str, Any] | None = None
    """Not supported yet, and refused."""
    compile: _Truth = False
    """Not supported in a spec yet, and refused; ``memgate run`` knows ``torch.compile``."""

    def model_post_init(self, _: Any) -> None:
        """Check that something is left to train."""
        if self.quantization is not None and self.lora is None:
            rule = "quantization: quantised weights cannot be trained"
            raise RuleError(rule, "add 'lora', an adapter beside them")

    @field_validator("input")
    @classmethod
    def _is_known(cls, given: InputSpec, checked: ValidationInfo) -> InputSpec:
        model = checked.data.get("model")
        if model is None or model.source is ModelSource.TRANSFORMERS:
            return given
        is_given = given.shape is not None or model.source is ModelSource.TIMM
        if not is_given or given.sequence_length is not None or given.tensors:
            raise RuleError(f"{model.source}'s models take 'shape'", "give that of one sample")
        return given


#: fields of jobs that cannot be run yet -> what the answer would be about without the field
_NOT_YET = {
    "distributed": "one process on one GPU",
    "compile": "the model as it is, not compiled",
}


def check_supported(spec: JobSpec) -> None:
    """Refuse a job that memgate cannot run yet; the spec itself is right.

    Raises:
        UnsupportedJobError: naming each field, and what to do instead.
        UnsupportedAllocatorError: if its allocator's settings are not simulated.
    """
    parse_alloc_conf(spec.allocator)
    mistakes = tuple(
        Mistake(
            field=field,
            value=show_value(getattr(spec, field)),
            rule="memgate cannot run this yet",
            next_step=f"without it the answer would be for another job ({without}); use your own"
            " training script instead of a spec, or a trace of it",
        )
        for field, without in _NOT_YET.items()
        if getattr(spec, field)
    )
    if mistakes:
        raise UnsupportedJobError.from_mistakes(*mistakes, what="job spec")


def parse_job_spec(document: object) -> JobSpec:
    """Check a job spec that was read from JSON or YAML.

    Raises:
        InputError: naming each wrong field, its value and the rule.
    """
    if isinstance(document, dict) and "model" not in document and "architectures" in document:
        raise InputError(
            "this is the config.json of a model, not a job: write it in a job spec, as"
            ' {"model": {"source": "transformers", "config": {...}}, "input": {...},'
            ' "batch_size": 8}'
        )
    return validate(JobSpec, document, what="job spec")
