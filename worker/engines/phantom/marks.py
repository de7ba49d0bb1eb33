"""Marks: what an observer notes while a job runs, as positions among the tracker's rows."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from memgate.timeline import Category


class Phase(StrEnum):
    """Parts of an iteration; what is allocated in one tells what it is for."""

    #: before the first forward pass, between backward pass and step, between two iterations
    BETWEEN = "between"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


class PhaseMark(NamedTuple):
    """A phase began at a row."""

    position: int
    phase: Phase


class LayerMark(NamedTuple):
    """A module's forward began or ended at a row."""

    position: int
    layer: str
    begins: bool


class TensorMark(NamedTuple):
    """At a row, the block at an address held this."""

    position: int
    address: int
    category: Category
    layer: str
