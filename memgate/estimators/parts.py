"""Figures of an estimator -> a timeline that holds them all at once.

A formula says how much, not when. So each of its parts is one memory block that is never freed: the
peak is their sum, and everything that asks timelines (caps, GPUs, breakdown) works as for engines.
"""

from __future__ import annotations

from collections.abc import Mapping

from memgate.jobspec import JobSpec
from memgate.optimizers import count_kept
from memgate.timeline import Alloc, Category, Label, Timeline


def hold(parts: Mapping[Category, float]) -> Timeline:
    """Return the timeline of a job that takes these parts and keeps them."""
    kept = [(category, int(size)) for category, size in parts.items() if size >= 1]
    return Timeline(
        events=tuple(Alloc(place, size) for place, (_, size) in enumerate(kept)),
        labels=tuple(Label(category, "") for category, _ in kept),
    )


def count_states(job: JobSpec) -> int:
    """Return how many tensors as large as a weight the job's optimizer keeps; 0 if not known."""
    name, given = job.optimizer.name.rpartition(".")[2], job.optimizer.kwargs
    if name == "SGD":
        return int(bool(given.get("momentum")))
    return count_kept(name.removesuffix("8bit").removesuffix("4bit"), {}) or 0
