"""A public name that a spec gives alone -> the class by which its model was trained, and the note.

A name stands for weights, and those are trained for many tasks: whoever fine-tunes a model for
another one has another head, and another answer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from memgate.jobspec import ModelSource
from memgate.report import Reason

if TYPE_CHECKING:
    from torch import nn

    from memgate.jobspec import JobSpec

#: how the note of a run begins; the class follows
_TRAINED_AS = "trained_as:"


def name_head(spec: JobSpec, model: nn.Module) -> Iterator[str]:
    """Yield the note of the class, where a name alone has chosen it."""
    given = spec.model
    if given.source is ModelSource.TRANSFORMERS and given.name and given.architecture is None:
        yield f"{_TRAINED_AS}{type(model).__name__}"


def note_head(notes: Collection[str]) -> Iterator[Reason]:
    """Yield by which class a named model was trained."""
    for note in notes:
        if note.startswith(_TRAINED_AS):
            yield Reason(
                code="TRAINED_AS",
                message=f"the model was trained as {note.removeprefix(_TRAINED_AS)}, which its name"
                " stands for; for another task, give 'class' beside 'name'",
            )
