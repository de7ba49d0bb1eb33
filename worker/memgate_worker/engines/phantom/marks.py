"""Marks: what an observer notes while a job runs, as positions among the tracker's rows."""

from __future__ import annotations

from typing import NamedTuple

from memgate.timeline import Category, Phase


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
