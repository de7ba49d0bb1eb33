"""Runs a script in a runtime of ours, as ``memgate run`` does; what tests of that share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memgate.gpus import find_gpu
from memgate_worker.hook.memgate_hook.watch import Watch
from memgate_worker.recorder.question import CommandQuestion
from memgate_worker.recorder.ranks import record_command
from memgate_worker.recorder.reading import CommandRun, record_rank
from memgate_worker.runtimes.runtime import Runtime, read_runtimes

#: the runtime that scripts of tests run in
RUNTIME = read_runtimes()["torch-2.14"]

needs_runtime = pytest.mark.skipif(
    not RUNTIME.is_installed, reason="runtime torch-2.14 is not built: make runtime"
)

#: the first lines of a script that trains, and may evaluate
TRAIN = """
import os, sys, torch
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1)
def step(size=8):
    model.train()
    model(torch.zeros(size, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
def evaluate(size=8):
    model.eval()
    with torch.no_grad():
        model(torch.zeros(size, 256, device="cuda"))
"""


def record_fixture(begin: str = "") -> Any:
    """Make a fixture that writes a script after some first lines, and records it."""

    @pytest.fixture
    def record(tmp_path: Path) -> Any:
        def run(text: str, **options: Any) -> Any:
            path = tmp_path / "train.py"
            path.write_text(begin + text)
            return record_script(RUNTIME, path, **options)

        return run

    return record


def doubts(run: CommandRun) -> list[str]:
    """Return the codes of a recording's doubts."""
    return [doubt.code for doubt in run.traced.doubts]


def record_script(
    runtime: Runtime,
    path: Path,
    arguments: Sequence[str] = (),
    *,
    num_steps: int | None = None,
    on_progress: Any = lambda _: None,
    rank: int | None = None,
    usual_steps: int = 0,
    **options: Any,
) -> CommandRun:
    """Return what was recorded of a script on an A100; ``rank``: of this rank alone."""
    # scripts of tests are short: what they show is shown before an evaluation, or right after it
    watch = options.pop("watch", Watch(steps=num_steps))
    question = CommandQuestion(
        command=(str(runtime.python), str(path), *arguments),
        directory=Path.cwd(),
        environment=os.environ,
        gpu=find_gpu("a100-40"),
        runtime=runtime.name,
        watch=watch._replace(usual_steps=min(watch.usual_steps, usual_steps)),
        **options,
    )
    if rank is not None:
        return record_rank(replace(question, rank=rank), on_progress=on_progress)
    return record_command(question, on_progress=on_progress)
