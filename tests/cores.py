"""The two cores, held against each other: whatever is replayed here is replayed on both."""

from __future__ import annotations

from typing import Any

from memgate.allocator.config import AllocatorConfig
from memgate.allocator.native_core import load_core
from memgate.allocator.replay import Core, Replay, replay
from memgate.errors import TimelineError
from memgate.timeline import Timeline

#: the native one is missing only where no C++ compiler was: test_native_core.py requires it
CORES = (Core.PYTHON, Core.NATIVE) if load_core() else (Core.PYTHON,)


def tell_all(run: Replay) -> dict[str, Any]:
    """Return everything that a replay tells, but for which core it ran on."""
    told = {name: getattr(run, name) for name in Replay.__slots__ if name != "core"}
    return told | {"stats": run.stats.memory_stats()}


def replay_on_both(
    timeline: Timeline, config: AllocatorConfig, capacity_bytes: int, **options: Any
) -> Replay:
    """Replay on each core, require one answer in everything, and return it.

    Raises:
        TimelineError: if both do, in the same words.
    """
    runs: list[Replay] = []
    errors: list[TimelineError] = []
    for core in CORES:
        try:
            runs.append(replay(timeline, config, capacity_bytes, core=core, **options))
        except TimelineError as error:
            errors.append(error)
    if errors:
        assert [error.message for error in errors] == [errors[0].message] * len(CORES)
        raise errors[0]
    for core, run in zip(CORES, runs, strict=True):
        assert run.core is core
        assert tell_all(run) == tell_all(runs[0])
    return runs[-1]
