"""What a training job is: the request of every door, command line, HTTP and queue.

JSON or YAML becomes a ``JobSpec``, and wrong fields become errors that name them. Building the
model and running the loop is the worker's business.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.errors import InputError, UnsupportedJobError
from memgate.jobspec.adapters import LoraSpec, Quantization
from memgate.jobspec.inputs import InputSpec
from memgate.jobspec.model import ModelSource, ModelSpec
from memgate.jobspec.optimizer import OptimizerSpec
from memgate.jobspec.parts import (
    MAX_ACCUMULATION_STEPS,
    AllocatorText,
    Part,
    Settings,
    Size,
    Truth,
)
from memgate.jobspec.trainers import check_trainer, fill_in_defaults
from memgate.jobspec.training import (
    Attention,
    EvalSpec,
    OffloadSpec,
    Precision,
    Trainer,
    ZeroGrad,
)
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
    """Samples in a batch, of one step of accumulation."""
    loss: Literal["cross_entropy"] = "cross_entropy"
    """Of the outputs and labels; transformers' models compute it themselves from the labels."""
    optimizer: OptimizerSpec = OptimizerSpec()
    """SGD keeps nothing, Adam and AdamW twice the trained weights. AdamW with ``hf``."""
    zero_grad: ZeroGrad = ZeroGrad.BEFORE_BACKWARD
    """Where in an iteration gradients are dropped; it decides what lives at the peak."""
    iterations: Annotated[int, Field(strict=True, ge=1, le=64)] = 4
    """How many are run; memory rarely grows after the third."""
    precision: Precision = Precision.FP32
    """``amp-``: autocast, weights stay fp32; ``fp16`` and ``bf16``: weights, too."""
    gradient_checkpointing: Truth = False
    """Compute activations again in the backward pass, instead of keeping them."""
    gradient_accumulation_steps: Annotated[
        int, Field(strict=True, ge=1, le=MAX_ACCUMULATION_STEPS)
    ] = 1
    """Batches for each step of the optimizer."""
    clip_grad_norm: Annotated[float, Field(strict=True, gt=0)] | None = None
    """``torch.nn.utils.clip_grad_norm_`` with this norm, before each step; ``hf`` uses 1."""
    channels_last: Truth = False
    """Model and images in the memory format of that name."""
    cudnn_benchmark: Truth = False
    """``torch.backends.cudnn.benchmark``: cuDNN tries algorithms, which takes workspaces."""
    allocator: AllocatorText = ""
    """What ``PYTORCH_ALLOC_CONF`` would be."""
    runtime: str | None = None
    """The library versions the job runs with, by name; the default is the newest installed."""
    lora: LoraSpec | None = None
    """Train an adapter, and leave the model's own weights as they are."""
    quantization: Quantization | None = None
    """``nf4``, ``fp4`` or ``int8`` for the frozen weights, or an object that says more."""
    distributed: dict[str, Any] | None = None
    """Not supported yet, and refused."""
    compile: Truth | Settings = False
    """Not supported in a spec yet, and refused; ``memgate run`` knows ``torch.compile``."""
    trainer: Trainer = Trainer.PLAIN
    """Whose training loop runs: ``plain`` is memgate's own, the others are their libraries'."""
    attention: Attention = Attention.AUTO
    """How attention is computed. Only the library's own choice is supported yet."""
    packing: Truth = False
    """Samples are laid end to end, so that every sequence is full and nothing is padded."""
    eval: EvalSpec | None = None
    """An evaluation between the steps; ``{}`` is one like a step of training."""
    save: Truth = False
    """A checkpoint is saved between the steps, as the trainer saves it."""
    ema: Truth = False
    """An averaged copy of the weights is kept on the GPU (``AveragedModel`` of torch)."""
    liger: Truth = False
    """Not supported yet, and refused: the model's layers are replaced by liger-kernel's."""
    offload: OffloadSpec = OffloadSpec()
    """Not supported yet, and refused: what is kept in the host's memory."""

    def model_post_init(self, _: Any) -> None:
        """Check that something is left to train, and that the trainer can do it."""
        fill_in_defaults(self)
        check_trainer(self)
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
    "attention": "the attention that the library chooses",
    "liger": "the model's own layers",
    "offload": "a job that keeps everything on the GPU",
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
        if (given := getattr(spec, field)) and given != JobSpec.model_fields[field].default
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
