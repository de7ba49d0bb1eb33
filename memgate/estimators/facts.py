"""What estimators of others know of a job: its weights, and the operators of its forward pass."""

from __future__ import annotations

from msgspec import Struct


class Weight(Struct, frozen=True, array_like=True, gc=False):
    """A parameter."""

    num_elements: int
    size_bytes: int
    is_trained: bool


class Operator(Struct, frozen=True, array_like=True, gc=False):
    """An operator of the forward pass that makes new tensors."""

    name: str
    output_bytes: int
    #: operators whose outputs it takes, by their place in the list
    inputs: tuple[int, ...]
    #: parameters that it takes, by their place in theirs
    weights: tuple[int, ...]


class JobFacts(Struct, frozen=True, kw_only=True, tag="facts"):
    """A job, seen from outside: nothing here says when memory is asked for or given back."""

    weights: tuple[Weight, ...]
    #: elements of the parameters of the module that has the most of its own
    largest_layer: int
    #: modules with parameters of their own
    num_layers: int
    buffer_bytes: int
    batch_bytes: int
    operators: tuple[Operator, ...]
    #: of the model's first output, such as the logits of a language model
    output_bytes: int
    #: by PyTorch's MemTracker, if it was asked
    tracked_bytes: int | None = None
    versions: dict[str, str]
    #: of GPUs that PyTorch was built for
    architectures: tuple[str, ...]

    @property
    def num_parameters(self) -> int:
        """Of the whole model."""
        return sum(weight.num_elements for weight in self.weights)

    @property
    def weight_bytes(self) -> int:
        """Of the whole model."""
        return sum(weight.size_bytes for weight in self.weights)

    @property
    def trained_bytes(self) -> int:
        """Of parameters that get gradients."""
        return sum(weight.size_bytes for weight in self.weights if weight.is_trained)

    @property
    def activation_bytes(self) -> int:
        """Of everything that operators of the forward pass make."""
        return sum(operator.output_bytes for operator in self.operators)
