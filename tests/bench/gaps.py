"""Figures of a real card, predictions -> one constant, what is left, and rows that tell nothing.

The figures are what a whole card showed in use: the allocator's segments, and beside them the CUDA
context, libraries and the driver's own share, which are the same for every job. So measured minus
predicted reserved should be one constant, and what is left is the error.

Some rows are no measurement of a job that ran: it died, and nobody noted that. Others contain what
cuDNN's benchmark took while it tried algorithms, which the phantom does not model. Both are told
apart here by rules that are the same for all models, and listed, never dropped in silence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import ceil
from statistics import median

#: of the measured figure: a row that is off by more needs a reason
FAR = 0.1


class Kind(StrEnum):
    """What a row tells."""

    LIVED = "lived"
    """Ran, and nothing is odd about its figure."""
    DIED_BEYOND_CARD = "died: beyond the card"
    """Predicted to run out of memory on the card."""
    DIED_NO_STEP = "died: before its first step"
    """The figure does not even hold weights, gradients and momentum."""
    DIED_NO_GROWTH = "died: figure does not grow with the batch"
    """The same as another batch size's, or below a smaller one's, and below the prediction."""
    WORKSPACES = "workspaces of the benchmark"
    """Far above the prediction."""
    UNEXPLAINED = "unexplained: far below the prediction"
    """And no sign that it died; perhaps another input size."""

    @property
    def is_death(self) -> bool:
        """The figure says how far the run came, not what it needed."""
        return self.value.startswith("died")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A figure of the real card, and what was predicted for that job."""

    model: str
    batch_size: int
    measured_bytes: int
    #: batch size -> figure, of the same model
    siblings: Mapping[int, int]
    reserved_bytes: int
    runs_out: bool
    weights_bytes: int

    @property
    def gap_bytes(self) -> int:
        """What the card showed beside the predicted segments."""
        return self.measured_bytes - self.reserved_bytes

    def residual(self, constant_bytes: float) -> float:
        """Return what the constant leaves unexplained, as a share of the measured figure."""
        return (self.gap_bytes - constant_bytes) / self.measured_bytes

    @property
    def does_not_grow(self) -> bool:
        """Another batch size has the same figure, or a smaller one a larger figure."""
        return any(
            figure == self.measured_bytes
            or (batch_size < self.batch_size and figure > self.measured_bytes)
            for batch_size, figure in self.siblings.items()
            if batch_size != self.batch_size
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaps:
    """What the rows say together."""

    #: what the card shows beside the segments, the same for all
    constant_bytes: float
    kinds: tuple[tuple[Row, Kind], ...]

    def residuals(self, *kinds: Kind, batch_size: int | None = None) -> list[float]:
        """Return the sizes of what is left in rows of these kinds, smallest first."""
        return sorted(
            abs(row.residual(self.constant_bytes))
            for row, kind in self.kinds
            if kind in kinds and batch_size in (None, row.batch_size)
        )

    def gaps(self, *kinds: Kind) -> list[int]:
        """Return the gaps of rows of these kinds, smallest first."""
        return sorted(row.gap_bytes for row, kind in self.kinds if kind in kinds)


def sort_out(rows: Sequence[Row]) -> Gaps:
    """Find the constant, and say of each row what it tells.

    The constant is the median over rows that show no sign of a death, workspaces included: a median
    does not mind them, and so no row is chosen by how well it fits.
    """
    alive = [row.gap_bytes for row in rows if not (row.runs_out or row.does_not_grow)]
    constant = median(alive or [row.gap_bytes for row in rows])
    return Gaps(constant_bytes=constant, kinds=tuple((row, _kind(row, constant)) for row in rows))


def _kind(row: Row, constant_bytes: float) -> Kind:
    residual = row.residual(constant_bytes)
    if row.runs_out:
        return Kind.DIED_BEYOND_CARD
    if residual > FAR:
        return Kind.WORKSPACES
    if residual >= -FAR:
        # A smaller batch may show more because of its workspaces: no sign of a death by itself.
        return Kind.LIVED
    # Weights, gradients and momentum are there after a step, whatever the batch size.
    if row.measured_bytes - constant_bytes < 3 * row.weights_bytes:
        return Kind.DIED_NO_STEP
    return Kind.DIED_NO_GROWTH if row.does_not_grow else Kind.UNEXPLAINED


def percentile(values: Sequence[float], share: float) -> float:
    """Return the value that this share of sorted values does not exceed."""
    return values[max(0, ceil(share * len(values)) - 1)]
