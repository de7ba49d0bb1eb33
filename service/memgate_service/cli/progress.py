"""The progress of a script or a command, for the person waiting for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from memgate_worker.local import Heard


@contextmanager
def show_steps(script: Path, steps: int, *, silent: bool) -> Iterator[Callable[[int], None]]:
    """Yield a function to call with the number of steps; a script may load data for a while."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=silent) as shown:
        task = shown.add_task(f"{script.name}: starting")

        def on_step(num_steps: int) -> None:
            shown.update(task, description=f"{script.name}: step {num_steps} of {steps}")

        yield on_step


@contextmanager
def show_stages(name: str, *, silent: bool) -> Iterator[Callable[[Heard], None]]:
    """Yield a function to call with what was heard of a command."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=silent) as shown:
        task = shown.add_task(f"{name}: starting")

        def on_progress(heard: Heard) -> None:
            rank = next((f" rank {rank}," for rank in heard.ranks.values()), "")
            stage = f"{name}:{rank} {heard.stage}, step {heard.num_steps}"
            shown.update(task, description=stage)

        yield on_progress
