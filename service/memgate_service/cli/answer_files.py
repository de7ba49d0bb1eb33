"""``--plot``, ``--curve`` and ``-o``: what is written beside an answer, each into a new file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.gpus import GpuTarget
from memgate_service.cli.curves import prepare_curve, write_timeline_curve
from memgate_service.cli.plots import plot_timeline, prepare_picture
from memgate_service.cli.timelines import prepare_timeline, save_timeline
from memgate_worker.local import LocalAnswer


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFiles:
    """The files that were asked for, if any."""

    picture: Path | None
    curve: Path | None
    timeline: Path | None

    @classmethod
    def prepare(
        cls, *, plot: Path | None, curve: Path | None, output: Path | None = None
    ) -> AnswerFiles:
        """Make sure that they can be written before time is spent on the answer.

        Raises:
            InputError: if one is there already, or cannot be made.
        """
        return cls(
            picture=prepare_picture(plot) if plot is not None else None,
            curve=prepare_curve(curve) if curve is not None else None,
            timeline=prepare_timeline(output) if output is not None else None,
        )

    def write(
        self, found: LocalAnswer, target: GpuTarget, *, title: str, command: Sequence[str] = ()
    ) -> None:
        """Write them; ``command`` is how the job is started without memgate."""
        config = parse_alloc_conf(found.alloc_conf)
        if self.picture is not None:
            plot_timeline(found.timeline, config, target, title=title, path=self.picture)
        if self.curve is not None:
            write_timeline_curve(found.timeline, config, target, path=self.curve)
        if self.timeline is not None:
            save_timeline(found.record(target.gpu, command), self.timeline)
