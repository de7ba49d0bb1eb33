"""What a training job is: the request of every door, command line, HTTP and queue.

JSON or YAML becomes a ``JobSpec``, and wrong fields become errors that name them. Building the
model and running the loop is the worker's business.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from operator import attrgetter
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationInfo, field_validator

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.errors import InputError, UnsupportedJobError
from memgate.jobspec.adapters import LoraSpec, Quantization
from memgate.jobspec.attention import Attention, asks_for_flash, check_attention
from memgate.jobspec.distributed import DistributedSpec
from memgate.jobspec.inputs import InputSpec
from memgate.jobspec.model import ModelSource, ModelSpec
from memgate.jobspec.optimizer import OptimizerSpec
from memgate.jobspec.parts import (
    MAX_ACCUMULATION_STEPS,
    AllocatorText,
    Part,
    Size,
    Truth,
)
from memgate.jobspec.together import check_together
from memgate.jobspec.trainers import find_plain_only, own_defaults
from memgate.jobspec.training import (
    USUAL_ITERATIONS,
    Compile,
    EvalSpec,
    Loss,
    OffloadSpec,
    Precision,
    Trainer,
    ZeroGrad,
)
from memgate.jobspec.undivided import find_undivided
from memgate.mistakes import Mistake, RuleError, show_value
from memgate.validation import validate

#: the refusal of a question about the inference of a job spec
INFERENCE_OF_A_JOB = "inference is for traces; a job spec describes training"

#: and that about one of its devices
DEVICE_OF_A_JOB = (
    "device is {device}: only memory snapshots and traces of GPUs have several; leave it out"
)


class JobSpec(Part):
    """A training job."""

    model: Annotated[ModelSpec, Field(examples=[{"source": "torchvision", "name": "resnet50"}])]
    """What is trained."""
    input: Annotated[
        InputSpec, Field(examples=[{"shape": [3, 224, 224]}, {"sequence_length": 512}])
    ]
    """How large one sample is."""
    batch_size: Annotated[Size, Field(examples=[32])]
    """Samples in a batch of one GPU, of one step of accumulation."""
    loss: Loss = Loss.CROSS_ENTROPY
    """Of the outputs and labels; transformers' models compute it themselves from the labels, those
    of diffusers learn noise. ``contrastive``: of two texts for each sample, for embeddings."""
    optimizer: Annotated[OptimizerSpec, Field(examples=[{"name": "AdamW"}])] = OptimizerSpec()
    """SGD keeps nothing, Adam and AdamW twice the trained weights. AdamW with ``hf``, ``trl-sft``
    unless given."""
    zero_grad: ZeroGrad = ZeroGrad.BEFORE_BACKWARD
    """Where in an iteration gradients are dropped; it decides what lives at the peak."""
    iterations: Annotated[int, Field(strict=True, ge=1, le=64)] = USUAL_ITERATIONS
    """How many are run; memory rarely grows after the third. Where the input varies, its batches
    say how many."""
    precision: Precision = Precision.FP32
    """``amp-``: autocast, weights stay fp32; ``fp16`` and ``bf16``: weights, too."""
    gradient_checkpointing: Truth = False
    """Compute activations again in the backward pass, instead of keeping them."""
    gradient_accumulation_steps: Annotated[
        int, Field(strict=True, ge=1, le=MAX_ACCUMULATION_STEPS)
    ] = 1
    """Batches for each step of the optimizer."""
    clip_grad_norm: Annotated[float, Field(strict=True, ge=0)] | None = None
    """``torch.nn.utils.clip_grad_norm_`` with this norm, before each step; 0 does not clip. 1 with
    ``hf`` and ``trl-sft`` unless given."""
    channels_last: Truth = False
    """Model and images in the memory format of that name; it is for models with convolutions."""
    cudnn_benchmark: Truth = False
    """``torch.backends.cudnn.benchmark``: cuDNN tries algorithms for convolutions, which takes
    workspaces."""
    allocator: AllocatorText = ""
    """What ``PYTORCH_ALLOC_CONF`` would be."""
    runtime: str | None = None
    """The library versions the job runs with, by name; the default is the newest installed."""
    lora: Annotated[LoraSpec | None, Field(examples=[{"rank": 16}])] = None
    """Train an adapter, and leave the model's own weights as they are."""
    quantization: Quantization | None = None
    """``nf4``, ``fp4`` or ``int8`` for the frozen weights, or an object that says more."""
    distributed: Annotated[
        DistributedSpec | None, Field(examples=[{"strategy": "fsdp2", "world_size": 8}])
    ] = None
    """Many GPUs, one process for each; ``batch_size`` is that of one of them."""
    compile: Annotated[Compile, Field(examples=[True, {"mode": "max-autotune-no-cudagraphs"}])] = (
        False
    )
    """``torch.compile`` of the model, with its own arguments if an object is given."""
    trainer: Trainer = Trainer.PLAIN
    """Whose training loop runs: ``plain`` is memgate's own, the others are their libraries'."""
    attention: Annotated[Attention, Field(validate_default=True)] = Attention.AUTO
    """How a model of transformers computes attention; ``auto``: as the library chooses."""
    packing: Truth = False
    """Samples are laid end to end, so that every sequence is full and nothing is padded."""
    eval: Annotated[EvalSpec | None, Field(examples=[{"batch_size": 16}])] = None
    """An evaluation between the steps; ``{}`` is one like a step of training."""
    save: Truth = False
    """A checkpoint is saved between the steps, as the trainer saves it."""
    ema: Truth = False
    """An averaged copy of the weights is kept on the GPU (``AveragedModel`` of torch)."""
    liger: Truth = False
    """The layers of a model of transformers are replaced by liger-kernel's."""
    offload: Annotated[OffloadSpec, Field(examples=[{"activations": True}])] = OffloadSpec()
    """State of the optimizer, or activations, that wait in the host's memory."""

    def model_post_init(self, _: Any) -> None:
        """Write down what its trainer does by itself, and check that its fields go together."""
        self.__dict__.update(own_defaults(self))  # it is frozen from here on
        check_together(self)

    @property
    def uses_flash_attention(self) -> bool:
        """Attention is that of the flash-attn package, by this spec or by the model's config."""
        return asks_for_flash(self.attention, self.model)

    @field_validator("attention")
    @classmethod
    def _can_attend(cls, given: Attention, checked: ValidationInfo) -> Attention:
        check_attention(given, checked.data.get("model"), checked.data.get("precision"))
        return given

    @field_validator("input")
    @classmethod
    def _is_known(cls, given: InputSpec, checked: ValidationInfo) -> InputSpec:
        model = checked.data.get("model")
        if model is None or model.source.has_configs:
            return given
        is_given = given.shape is not None or model.source is ModelSource.TIMM
        if not is_given or given.sequence_length is not None or given.tensors:
            raise RuleError(f"{model.source}'s models take 'shape'", "give that of one sample")
        return given


def check_supported(spec: JobSpec) -> None:
    """Refuse a job that memgate cannot run yet; the spec itself is right.

    Raises:
        UnsupportedJobError: naming each field, and what to do instead.
        UnsupportedAllocatorError: if its allocator's settings are not simulated.
    """
    parse_alloc_conf(spec.allocator)
    spec.input.check_drawn(spec.batch_size)
    mistakes = tuple(_refuse_combinations(spec))
    if mistakes:
        raise UnsupportedJobError.from_mistakes(*mistakes, what="job spec")


def _refuse_combinations(spec: JobSpec) -> Iterator[Mistake]:
    """Refuse fields that each can be run, and not yet with one another."""
    together = [(field, f"the trainer {spec.trainer}") for field in find_plain_only(spec)]
    if spec.packing and spec.input.varies:
        together.append(("packing", "an input that varies from batch to batch"))
    if spec.compile and spec.offload.activations:
        together.append(("compile", "activations that are offloaded"))
    together += find_undivided(spec)
    for field, other in together:
        yield Mistake(
            field=field,
            value=_tell_value(spec, field),
            rule=f"memgate cannot run this yet with {other}",
            next_step="use your own training script instead of a spec: memgate run",
        )


def _tell_value(spec: JobSpec, field: str) -> str:
    """Write the value of a field, and that nobody has written it if that is so."""
    value = show_value(_plain(attrgetter(field)(spec)))
    return value if field.partition(".")[0] in spec.model_fields_set else f"{value} by default"


def _plain(value: object) -> object:
    """Return a field as its owner may have written it."""
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json", exclude_defaults=True)
    return value.value if isinstance(value, Enum) else value


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
