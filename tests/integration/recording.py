"""Runs a script in a runtime of ours, as ``memgate run`` runs any command."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memgate.gpus import find_gpu
from memgate_worker.hook.memgate_hook.watch import Watch
from memgate_worker.recorder.question import CommandQuestion
from memgate_worker.recorder.reading import CommandRun, record_command
from memgate_worker.runtimes.runtime import Runtime


def record_script(
    runtime: Runtime,
    path: Path,
    arguments: Sequence[str] = (),
    *,
    num_steps: int | None = None,
    on_progress: Any = lambda _: None,
    **options: Any,
) -> CommandRun:
    """Return what was recorded of a script on an A100."""
    question = CommandQuestion(
        command=(str(runtime.python), str(path), *arguments),
        directory=Path.cwd(),
        environment=os.environ,
        gpu=find_gpu("a100-40"),
        runtime=runtime.name,
        **({"watch": Watch(steps=num_steps)} | options),
    )
    return record_command(question, on_progress=on_progress)
