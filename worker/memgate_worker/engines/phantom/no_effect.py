"""A job and its model -> the fields of the spec that change nothing of its memory, and the note."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from memgate.report import Reason

if TYPE_CHECKING:
    from torch import nn

    from memgate.jobspec import JobSpec

#: the notes of a run, by field
CHANNELS_LAST = "channels_last_has_no_effect"
CUDNN_BENCHMARK = "cudnn_benchmark_has_no_effect"

_FIELDS = {CHANNELS_LAST: "channels_last", CUDNN_BENCHMARK: "cudnn_benchmark"}


def find_without_effect(spec: JobSpec, model: nn.Module) -> Iterator[str]:
    """Yield the note of each field that is for convolutions, where the model has none.

    Images are laid out anew even for a model without any, so one that takes them is left alone.
    """
    from torch.nn.modules.conv import _ConvNd

    if getattr(model, "main_input_name", None) != "input_ids" or spec.input.shape is not None:
        return
    convolutions = [one for one in model.modules() if isinstance(one, _ConvNd)]
    if spec.channels_last and not any(one.weight.dim() == 4 for one in convolutions):
        yield CHANNELS_LAST
    if spec.cudnn_benchmark and not convolutions:
        yield CUDNN_BENCHMARK


def note_without_effect(notes: Collection[str]) -> Iterator[Reason]:
    """Yield that a field was given for nothing."""
    given = [field for note, field in _FIELDS.items() if note in notes]
    if given:
        yield Reason(
            code="NO_EFFECT",
            message=f"{' and '.join(given)}: the model has no convolutions that this is for, so the"
            " job takes the same memory without it",
        )
