"""What a model's forward says about its arguments, beyond its signature."""

from __future__ import annotations

from functools import wraps
from typing import Any

from memgate_worker.jobs.tasks.demands import Described, read_demands, read_descriptions


class _Model:
    def forward(self, x: Any, boxes: Any = None, mask: Any = None, labels: Any = None) -> Any:
        """Run.

        boxes (`torch.LongTensor` of shape `(batch_size, num_boxes, 4)`, *optional*):
            Where.
        mask ('torch.Tensor' of shape '(batch_size, sequence_length)'):
            What counts.
        labels (`list[dict]`): no tensor.
        """
        if boxes is None:
            raise ValueError("boxes are needed")
        if mask is None:
            mask = x
        if labels is not None:
            raise NotImplementedError("training is not supported")
        return mask


class _Trained:
    def forward(self, x: Any, mask: Any = None, other: Any = None, labels: Any = None) -> Any:
        width = other.shape if other is not None else 0
        if x:
            return other.shape
        if labels is not None:
            seen = mask.view(-1)
            mask = seen
            return seen, width
        if mask is None:
            raise ValueError("set above, if there are labels")
        return x


def _decorated(function: Any) -> Any:
    @wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


def test_an_argument_that_a_forward_raises_without_is_required() -> None:
    """The signature calls it optional; one that is filled in is."""
    assert read_demands(_Model.forward).required == {"boxes"}


def test_labels_that_a_forward_raises_with_are_refused() -> None:
    """Such a model has no loss of its own."""
    assert read_demands(_decorated(_Model.forward)).refused == {"labels"}


def test_what_the_loss_uses_as_it_is_must_be_there() -> None:
    """Uses under any other condition do not count: the condition may never hold."""
    demands = read_demands(_Trained.forward)

    assert demands.used == {"mask"}
    assert not demands.required


def test_a_forward_without_source_demands_nothing() -> None:
    """Models can be made without a file."""
    demands = read_demands(len)

    assert (demands.required, demands.refused, demands.used) == (frozenset(),) * 3


def test_a_docstring_describes_tensors() -> None:
    """By their kind and the names of their sizes, however they are quoted."""
    assert read_descriptions(_Model.forward) == {
        "boxes": Described(dtype="int64", shape=("batch_size", "num_boxes", "4")),
        "mask": Described(dtype="float32", shape=("batch_size", "sequence_length")),
    }
