"""How large one sample of a job is, and how that varies."""

from __future__ import annotations

from typing import Annotated, Any, Literal, cast

from pydantic import Field

from memgate.jobspec.parts import MAX_DIMENSIONS, MAX_TENSORS, Part, Size, Truth
from memgate.jobspec.varying import LengthDistribution, Lengths, ShapeDistribution, Shapes
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

    shape: Shapes | None = None
    """Of one sample, without the batch; or the shapes of successive batches, or their
    distribution."""
    dtype: Literal["float32", "float16", "bfloat16"] = "float32"
    """Of images and latents, as the data loader makes them; not of models of transformers."""
    sequence_length: Lengths | None = None
    """Tokens; of sound and series, samples or frames. One length, or those of successive batches,
    or their distribution."""
    tensors: dict[str, TensorSpec] = Field(default_factory=dict, max_length=MAX_TENSORS)
    """What a model of transformers or diffusers is given, by the names of its arguments, instead of
    both."""

    precomputed: Truth = False
    """Of models of diffusers: latents and texts are encoded before training, so that no autoencoder
    and no text encoder is on the GPU. Otherwise nothing is admitted without a doubt."""

    def model_post_init(self, _: Any) -> None:
        """Check that tensors are all of it."""
        if self.tensors and not (self.shape is None and self.sequence_length is None):
            raise RuleError(
                "'tensors' are given instead of 'shape' and 'sequence_length'", "leave those out"
            )
        if self._num_lengths and self._num_shapes and self._num_lengths != self._num_shapes:
            raise RuleError(
                f"there are {self._num_lengths:,} lengths of batches and {self._num_shapes:,}"
                " shapes",
                "give as many of one as of the other",
            )

    @property
    def is_empty(self) -> bool:
        """Nothing is given: the model's own shape is meant."""
        return self.shape is None and self.sequence_length is None and not self.tensors

    @property
    def length(self) -> int | None:
        """The length of sequences, of the input of one batch."""
        given = self.sequence_length
        assert given is None or isinstance(given, int), "it is not the input of one batch"
        return given

    @property
    def sample_shape(self) -> tuple[int, ...] | None:
        """The shape of a sample, of the input of one batch."""
        assert self.shape is None or (isinstance(self.shape, tuple) and not self._num_shapes)
        return cast("tuple[int, ...] | None", self.shape)

    @property
    def varies(self) -> bool:
        """Batches may be of different sizes."""
        return bool(self._num_lengths or self._num_shapes)

    @property
    def _num_lengths(self) -> int:
        """The number of lengths of batches, 0 if all have one."""
        given = self.sequence_length
        if isinstance(given, LengthDistribution):
            return given.batches + 1
        return len(given) if isinstance(given, tuple) else 0

    @property
    def _num_shapes(self) -> int:
        given = self.shape
        if isinstance(given, ShapeDistribution):
            return given.batches + 1
        is_list = isinstance(given, tuple) and given and isinstance(given[0], tuple)
        return len(given) if is_list and isinstance(given, tuple) else 0

    def check_drawn(self, batch_size: int) -> None:
        """Refuse what would take too long to draw. Raises as ``list_batches``."""
        for given in (self.sequence_length, self.shape):
            if isinstance(given, LengthDistribution):
                given.check_sorted(batch_size)

    def list_batches(self, batch_size: int) -> tuple[InputSpec, ...]:
        """Return the input of each batch in turn; one, if all are the same.

        Raises:
            UnsupportedJobError: if more samples would have to be sorted than we do.
        """
        lengths: tuple[Any, ...] = (self.sequence_length,)
        if isinstance(self.sequence_length, LengthDistribution):
            lengths = self.sequence_length.draw(batch_size)
        elif self._num_lengths:
            assert isinstance(self.sequence_length, tuple)
            lengths = self.sequence_length
        shapes: tuple[Any, ...] = (self.shape,)
        if isinstance(self.shape, ShapeDistribution):
            shapes = self.shape.draw_shapes(batch_size)
        elif self._num_shapes:
            assert isinstance(self.shape, tuple)
            shapes = self.shape
        num = max(len(lengths), len(shapes))
        return tuple(
            self.model_copy(update={"sequence_length": length, "shape": shape})
            for length, shape in zip(
                lengths if len(lengths) == num else lengths * num,
                shapes if len(shapes) == num else shapes * num,
                strict=True,
            )
        )
