"""What a training job is: the request of every door, command line, HTTP and queue.

JSON or YAML becomes a ``JobSpec``, and wrong fields become errors that name them. Building the
model and running the loop is the worker's business.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.errors import AllocatorConfigError
from memgate.validation import validate

#: far above what people train with, far below what would keep a worker busy for ever or overflow
MAX_SIZE = 1 << 20
MAX_ACCUMULATION_STEPS = 1024
MAX_DIMENSIONS = 8

#: of ``config`` and ``kwargs``: the length of their JSON, and the largest whole number in them
MAX_SETTINGS_LENGTH = 64 * 1024
MAX_SETTINGS_NUMBER = 1 << 31

_Size = Annotated[int, Field(ge=1, le=MAX_SIZE)]


def _check_settings(settings: dict[str, Any]) -> dict[str, Any]:
    try:
        length = len(json.dumps(settings, default=str))
        _check_numbers(settings)
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    if length > MAX_SETTINGS_LENGTH:
        raise ValueError(f"is too long: at most {MAX_SETTINGS_LENGTH:,} characters as JSON")
    return settings


def _check_numbers(value: Any) -> None:
    if isinstance(value, dict | list):
        for part in value.values() if isinstance(value, dict) else value:
            _check_numbers(part)
    elif isinstance(value, int | float) and abs(value) > MAX_SETTINGS_NUMBER:
        raise ValueError(f"holds {value}, and no number in it may exceed {MAX_SETTINGS_NUMBER:,}")


#: what is passed on to a constructor
_Settings = Annotated[dict[str, Any], AfterValidator(_check_settings)]


class _Part(BaseModel):
    """Unknown fields are errors; a spec does not change once it is read."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelSource(StrEnum):
    """Where a model comes from."""

    TORCHVISION = "torchvision"
    TIMM = "timm"
    TRANSFORMERS = "transformers"


class ModelSpec(_Part):
    """Which model, and how it is made. Weights are never downloaded: they do not matter."""

    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)

    source: ModelSource
    name: str | None = None
    """A constructor of torchvision or timm, or a public model of our own table."""
    class_name: Annotated[str | None, Field(alias="class")] = None
    """A class of transformers, such as ``GPT2LMHeadModel``."""
    config: _Settings = {}
    """What is given to that class's configuration."""
    kwargs: _Settings = {}
    """What is given to the constructor of torchvision or timm."""

    def model_post_init(self, _: Any) -> None:
        """Check that what the source needs is there, and nothing it cannot use."""
        if self.source is ModelSource.TRANSFORMERS:
            if self.kwargs or (self.name is None) == (self.class_name is None):
                raise ValueError("transformers takes 'class' and 'config', or a public 'name'")
        elif self.name is None or self.class_name or self.config:
            raise ValueError(f"{self.source} takes 'name' and 'kwargs', not 'class' or 'config'")


class InputSpec(_Part):
    """What a batch is made of: images of a shape, or sequences of a length.

    Empty for a model of timm: the shape that timm trains it with.
    """

    shape: Annotated[tuple[_Size, ...], Field(max_length=MAX_DIMENSIONS)] | None = None
    """Of one sample, without the batch."""
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    sequence_length: _Size | None = None
    """Tokens; labels are the inputs."""

    def model_post_init(self, _: Any) -> None:
        """Check that it is not both."""
        if self.shape is not None and self.sequence_length is not None:
            raise ValueError("give either 'shape' or 'sequence_length'")

    @property
    def is_empty(self) -> bool:
        """Nothing is said: the model's own shape is meant."""
        return self.shape is None and self.sequence_length is None


class OptimizerSpec(_Part):
    """A class of ``torch.optim`` and what it is given."""

    name: str = "SGD"
    kwargs: _Settings = {}


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

    model: ModelSpec
    input: InputSpec
    batch_size: _Size
    loss: Literal["cross_entropy"] = "cross_entropy"
    """Of the outputs and labels; transformers' models compute it themselves from the labels."""
    optimizer: OptimizerSpec = OptimizerSpec()
    zero_grad: ZeroGrad = ZeroGrad.BEFORE_BACKWARD
    iterations: Annotated[int, Field(ge=1, le=64)] = 4
    precision: Precision = Precision.FP32
    gradient_checkpointing: bool = False
    gradient_accumulation_steps: Annotated[int, Field(ge=1, le=MAX_ACCUMULATION_STEPS)] = 1
    clip_grad_norm: Annotated[float, Field(gt=0)] | None = None
    channels_last: bool = False
    cudnn_benchmark: bool = False
    allocator: str = ""
    """A ``PYTORCH_ALLOC_CONF`` string."""
    runtime: str | None = None
    """The library versions the job runs with, by name; the default is the newest installed."""
    lora: dict[str, Any] | None = None
    distributed: dict[str, Any] | None = None
    compile: bool = False

    @field_validator("input")
    @classmethod
    def _is_known(cls, given: InputSpec, checked: ValidationInfo) -> InputSpec:
        model = checked.data.get("model")
        if given.is_empty and model is not None and model.source is not ModelSource.TIMM:
            raise ValueError(
                "give either 'shape' or 'sequence_length'; only timm's models have one of their own"
            )
        return given

    @field_validator("allocator")
    @classmethod
    def _is_an_allocator_setting(cls, text: str) -> str:
        try:
            parse_alloc_conf(text)
        except AllocatorConfigError as error:
            raise ValueError(error.message) from None
        return text

    @field_validator("lora", "distributed", "compile")
    @classmethod
    def _is_not_yet(cls, value: object) -> object:
        if value:
            raise ValueError("is not supported yet; leave it out")
        return value


def parse_job_spec(document: object) -> JobSpec:
    """Check a job spec that was read from JSON or YAML.

    Raises:
        InputError: naming each wrong field, its value and the rule.
    """
    return validate(JobSpec, document, what="job spec")
