"""How large one sample of a job is."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from memgate.jobspec.parts import MAX_DIMENSIONS, MAX_TENSORS, Part, Size
from memgate.mistakes import RuleError


class TensorSpec(Part):
    """One tensor that a model is given."""

    shape: Annotated[tuple[Size, ...], Field(max_length=MAX_DIMENSIONS)]
    """Of one sample, without the batch; empty for a number."""
    dtype: Literal["float32", "float16", "bfloat16", "int64", "int32", "uint8", "bool"] = "float32"
    """Of its numbers."""


class InputSpec(Part):
    """What a batch is made of: images of a shape, sequences of a length, or tensors by name.

    What is left out follows from the model, where it has a size of its own: images of timm's models
    and of configurations that say how large they are.
    """

    shape: Annotated[tuple[Size, ...], Field(max_length=MAX_DIMENSIONS)] | None = None
    """Of one sample, without the batch."""
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """Of images, as the data loader makes them."""
    sequence_length: Size | None = None
    """Tokens; of sound and series, samples or frames."""
    tensors: dict[str, TensorSpec] = Field(default_factory=dict, max_length=MAX_TENSORS)
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
