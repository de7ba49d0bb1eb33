"""What is known about how far estimates may be off: of a whole process, as the catalogue is.

A program says once, when it starts, which coverage its operator wants, and whenever it changes,
what outcomes have taught (``use_calibration``). Reading that from a store is not done here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from memgate.context import DOCUMENTED_CONTEXT, ContextRange
from memgate.gpus import GpuSpec
from memgate.margin_scores import SCORES
from memgate.margins import DEFAULT_COVERAGE, Family, Margin, find_margin
from memgate.workspaces import NO_WORKSPACES, WorkspaceRange

_DIGEST_LENGTH = 16


class GroupName(NamedTuple):
    """Outcomes teach about a GPU and a runtime."""

    gpu: str
    runtime: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """What the operator wants, and what outcomes have taught."""

    coverage: float = DEFAULT_COVERAGE
    contexts: Mapping[GroupName, ContextRange] = field(default_factory=dict)
    #: by what share more than estimated jobs reserved; only what is wider than shipped counts
    margins: Mapping[GroupName, float] = field(default_factory=dict)


class Bounds(NamedTuple):
    """How far an estimate for a GPU may be off, and where that is known from."""

    coverage: float
    margin: Margin
    family: Family
    context: ContextRange
    workspaces: WorkspaceRange = NO_WORKSPACES


_SHIPPED = Calibration()
_current = _SHIPPED


def use_calibration(calibration: Calibration) -> None:
    """Make it that of this process."""
    global _current
    _current = calibration


def current_calibration() -> Calibration:
    """Return that of this process."""
    return _current


def digest_calibration() -> str:
    """Return a short name of what answers depend on; empty if it is what memgate brings."""
    if _current == _SHIPPED:
        return ""
    said = repr(
        (_current.coverage, sorted(_current.contexts.items()), sorted(_current.margins.items()))
    )
    return hashlib.sha256(said.encode()).hexdigest()[:_DIGEST_LENGTH]


def find_bounds(
    gpu: GpuSpec,
    *,
    runtime: str = "",
    family: Family = Family.UNKNOWN,
    workspaces: WorkspaceRange = NO_WORKSPACES,
) -> Bounds:
    """Return how far an estimate may be off on a GPU."""
    group = GroupName(gpu.name, runtime)
    margin = _shipped_margin(gpu.product, family, _current.coverage)
    learned = _current.margins.get(group, 0.0)
    if learned > margin.ratio:
        margin = margin._replace(ratio=learned, group=f"outcomes of {gpu.name}")
    context = _current.contexts.get(group) or gpu.context or DOCUMENTED_CONTEXT
    return Bounds(_current.coverage, margin, family, context, workspaces)


@lru_cache(maxsize=1024)
def _shipped_margin(product: str, family: Family, coverage: float) -> Margin:
    return find_margin(SCORES, product, family, coverage)
