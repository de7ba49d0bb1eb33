"""What is said of an estimator that is not ours."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from memgate.estimators.facts import JobFacts
from memgate.jobspec import JobSpec
from memgate.timeline import Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """An estimator of others, as an engine that can be asked."""

    #: as engines are named
    name: str
    #: where the method is from
    source: str
    #: the figure that its authors give for it
    published: str
    #: what of it is not as in the source, or not known
    limits: str
    estimate: Callable[[JobSpec, JobFacts], Timeline]
    #: it needs what PyTorch's MemTracker says
    tracks: bool = False
