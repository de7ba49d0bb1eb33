"""Marks: what is noted while a job runs, as positions among the tracker's rows.

Phases and categories are those of ``memgate.timeline``, by their values: memgate itself is not
there in a job's process.
"""

from __future__ import annotations

from typing import NamedTuple


class PhaseMark(NamedTuple):
    """A phase began at a row."""

    position: int
    phase: str


class LayerMark(NamedTuple):
    """A module's forward began or ended at a row."""

    position: int
    layer: str
    begins: bool


class TensorMark(NamedTuple):
    """At a row, the block at an address held this."""

    position: int
    address: int
    category: str
    layer: str


class StageMark(NamedTuple):
    """A stage of the job began at a row."""

    position: int
    stage: str


class StepMark(NamedTuple):
    """A training step ended at a row."""

    position: int
    #: the most that was allocated at once since the step before
    peak_bytes: int
