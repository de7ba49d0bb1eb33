"""PyTorch's own MemTracker, on tensors without memory.

``torch.distributed._tools.mem_tracker``: it follows the tensors of the job's own loop, so its
figure is what would be allocated. It runs in the job's runtime (``memgate_worker``).
"""

from __future__ import annotations

from memgate.estimators.about import Baseline
from memgate.estimators.facts import JobFacts
from memgate.estimators.parts import hold
from memgate.jobspec import JobSpec
from memgate.timeline import Category, Timeline


def estimate(_: JobSpec, facts: JobFacts) -> Timeline:
    """Return what was tracked."""
    assert facts.tracked_bytes is not None, "the engine asks it to track"
    return hold({Category.OTHER: facts.tracked_bytes})


MEMTRACKER = Baseline(
    name="memtracker",
    source="PyTorch, torch.distributed._tools.mem_tracker",
    published="none",
    limits="what is allocated, not what is reserved; no workspaces of libraries; slow",
    estimate=estimate,
    tracks=True,
)
