"""Records a job in every style, with plain torch.profiler on the CPU.

Run by the Python of a runtime: ``python recording.py JOB DIRECTORY [STYLE ...]``.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from jobs import JOBS, Loop
from torch.profiler import ProfilerActivity, profile, schedule

ALL_FLAGS: dict[str, Any] = {"profile_memory": True, "with_stack": True, "record_shapes": True}
CPU = [ProfilerActivity.CPU]

Style = Callable[[Loop, Path], None]


def _from_the_first(steps: int, **flags: Any) -> Style:
    """Record some steps, from the first on; the model is older."""

    def record(loop: Loop, path: Path) -> None:
        prof = profile(activities=CPU, **flags)
        loop("cpu", steps, prof.start, prof.step)
        prof.stop()
        prof.export_chrome_trace(str(path))

    return record


def _scheduled(
    num: int, *, wait: int, warmup: int, active: int, repeat: int, **flags: Any
) -> Style:
    """Record as the tutorial of torch.profiler shows; the last cycle is kept."""

    def record(loop: Loop, path: Path) -> None:
        plan = schedule(wait=wait, warmup=warmup, active=active, repeat=repeat)
        prof = profile(
            activities=CPU,
            schedule=plan,
            on_trace_ready=lambda ready: ready.export_chrome_trace(str(path)),
            **flags,
        )
        loop("cpu", num, prof.start, prof.step)
        prof.stop()

    return record


def _one_step(**flags: Any) -> Style:
    """Record one step after two others, without a schedule."""

    def record(loop: Loop, path: Path) -> None:
        prof = profile(activities=CPU, **flags)
        seen = 0

        def done() -> None:
            nonlocal seen
            seen += 1
            if seen == 2:
                prof.start()
            elif seen == 3:
                prof.stop()

        loop("cpu", 3, lambda: None, done)
        prof.export_chrome_trace(str(path))

    return record


def _model_inside(loop: Loop, path: Path) -> None:
    """Record everything, the making of the model too."""
    with profile(activities=CPU, **ALL_FLAGS) as prof:
        loop("cpu", 3, lambda: None, lambda: None)
    prof.export_chrome_trace(str(path))


STYLES: dict[str, Style] = {
    "documented": _from_the_first(3, **ALL_FLAGS),
    "tutorial": _scheduled(5, wait=1, warmup=1, active=3, repeat=1, **ALL_FLAGS),
    "tutorial, memory only": _scheduled(
        5, wait=1, warmup=1, active=3, repeat=1, profile_memory=True
    ),
    "one step": _one_step(**ALL_FLAGS),
    "first step": _from_the_first(1, **ALL_FLAGS),
    "model inside": _model_inside,
    "no stack": _from_the_first(3, profile_memory=True, record_shapes=True),
    "no shapes": _from_the_first(3, profile_memory=True, with_stack=True),
    "defaults": _from_the_first(3, profile_memory=True),
    "cycles": _scheduled(
        8, wait=1, warmup=1, active=2, repeat=2, profile_memory=True, record_shapes=True
    ),
}


def main() -> None:
    """Record one job."""
    name, directory, *wanted = sys.argv[1:]
    for style in wanted or STYLES:
        gc.collect()
        torch.manual_seed(0)
        STYLES[style](JOBS[name], Path(directory) / f"{name}.{style.replace(' ', '_')}.json.gz")


if __name__ == "__main__":
    main()
