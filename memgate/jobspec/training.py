"""How a job is trained: which loop, which arithmetic, and what happens between its steps."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from pydantic import Discriminator, Field, Tag

from memgate.jobspec.parts import Part, Settings, Size, Truth
from memgate.mistakes import RuleError


class Loss(StrEnum):
    """What is made small, where the model itself does not say."""

    CROSS_ENTROPY = "cross_entropy"
    CONTRASTIVE = "contrastive"
    """Two texts for each sample: the vectors of those that belong together come closer."""


#: how many are run unless a spec says it
USUAL_ITERATIONS = 4


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


class Trainer(StrEnum):
    """Whose training loop runs: memgate's own, or that of a library."""

    PLAIN = "plain"
    HF = "hf"
    TRL_SFT = "trl-sft"
    LIGHTNING = "lightning"

    @property
    def is_of_transformers(self) -> bool:
        """It is transformers' ``Trainer``, or built on it."""
        return self in (Trainer.HF, Trainer.TRL_SFT)

    @property
    def full_name(self) -> str:
        """What its library calls it."""
        return _FULL_NAMES[self]


_FULL_NAMES = {
    Trainer.PLAIN: "memgate's own loop",
    Trainer.HF: "transformers' Trainer",
    Trainer.TRL_SFT: "trl's SFTTrainer",
    Trainer.LIGHTNING: "Lightning's Trainer",
}


class EvalSpec(Part):
    """An evaluation between the steps of training."""

    batch_size: Size | None = None
    """That of training unless given."""
    generate: Size | None = None
    """New tokens for each sample; a plain forward pass unless given."""


class OffloadSpec(Part):
    """What is kept in the host's memory, and copied to the GPU when it is needed."""

    optimizer: Truth = False
    """The state of the optimizer: torchao's ``CPUOffloadOptimizer``."""
    activations: Truth = False
    """What the backward pass needs of the forward pass: ``torch.autograd.graph.save_on_cpu``."""

    @property
    def is_given(self) -> bool:
        """Something is kept there."""
        return self.optimizer or self.activations


class CompileSpec(Part):
    """What ``torch.compile`` is called with."""

    fullgraph: Truth = False
    """Fail rather than compile in several parts."""
    dynamic: Truth | None = None
    """Whether shapes are left open."""
    backend: str = "inductor"
    """What compiles."""
    mode: Annotated[str | None, Field(examples=["max-autotune-no-cudagraphs"])] = None
    """Those with CUDA graphs (``reduce-overhead``, ``max-autotune``) are refused."""
    options: Settings | None = None
    """Settings of the backend, instead of a mode."""

    def model_post_init(self, _: Any) -> None:
        """Check that it has a mode or options, as torch does."""
        if self.mode is not None and self.options is not None:
            raise RuleError("torch.compile takes 'mode' or 'options'", "leave out one of the two")


#: a switch, or the arguments
Compile = Annotated[
    Annotated[Truth, Tag("~switch")] | Annotated[CompileSpec, Tag("~arguments")],
    Discriminator(lambda value: "~arguments" if isinstance(value, dict | Part) else "~switch"),
]


def check_offload(offload: OffloadSpec, optimizer: str, precision: Precision) -> None:
    """Refuse an optimizer whose state cannot be in the host's memory.

    Raises:
        RuleError: with the next step.
    """
    if not offload.optimizer:
        return
    field = "offload.optimizer: "
    if "." in optimizer:
        rule = f"{field}the host's part is a class of torch.optim, and {optimizer} is not one"
        raise RuleError(rule, "give one, such as AdamW; a paged optimizer needs no offload")
    if optimizer == "LBFGS":
        raise RuleError(f"{field}LBFGS calls the model itself", "give another optimizer")
    if precision is Precision.AMP_FP16:
        rule = f"{field}torch's scaler of gradients (precision amp-fp16) looks for them on the GPU"
        raise RuleError(rule, "use amp-bf16")
