"""How a job is trained: which loop, which arithmetic, and what happens between its steps."""

from __future__ import annotations

from enum import StrEnum

from memgate.jobspec.parts import Part, Size, Truth


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


class Attention(StrEnum):
    """How a model of transformers computes attention."""

    AUTO = "auto"
    SDPA = "sdpa"
    FLASH = "flash"
    EAGER = "eager"


class EvalSpec(Part):
    """An evaluation between the steps of training."""

    batch_size: Size | None = None
    """That of training unless given."""
    generate: Size | None = None
    """New tokens for each sample; a plain forward pass unless given."""


class OffloadSpec(Part):
    """What is kept in the host's memory, and copied to the GPU when it is needed."""

    optimizer: Truth = False
    """The state of the optimizer."""
    activations: Truth = False
    """What the backward pass needs of the forward pass."""
