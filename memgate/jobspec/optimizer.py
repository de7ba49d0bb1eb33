"""What steps: an optimizer and its arguments."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from memgate.jobspec.parts import Part, Settings
from memgate.mistakes import RuleError


class OptimizerSpec(Part):
    """An optimizer and its arguments."""

    name: Annotated[str, Field(examples=["AdamW", "bitsandbytes.AdamW8bit"])] = "SGD"
    """A class of ``torch.optim``, or one of bitsandbytes or torchao with the library before it."""
    kwargs: Settings = Field(default_factory=dict)
    """Its arguments, such as ``lr``, ``momentum``, ``foreach``, ``fused``."""
    companion: OptimizerSpec | None = None
    """For the parameters that an optimizer of matrices (Muon) leaves: AdamW unless given."""

    def model_post_init(self, _: Any) -> None:
        """Check that there are two optimizers at most."""
        if self.companion is not None and self.companion.companion is not None:
            raise RuleError("a companion has no companion of its own", "leave that one out")
