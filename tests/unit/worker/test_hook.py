"""The hook in people's own environments: old Pythons, nothing but the standard library."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from memgate_worker.hook.memgate_hook.watch import MIN_STEPS, Seen, Watch
from memgate_worker.recorder.environment import HOOK_DIR

FILES = sorted(HOOK_DIR.rglob("*.py"))


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield the top names of everything that a file imports from outside its package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_a_file_of_the_hook_is_read_by_python_3_9_and_needs_only_its_library(path: Path) -> None:
    """Torch is there by then; memgate never is."""
    tree = ast.parse(path.read_text(), feature_version=(3, 9))

    assert {*imports(tree)} <= {*sys.stdlib_module_names, "torch", "memgate_hook"}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_annotations_are_never_evaluated(path: Path) -> None:
    """So that those of newer Pythons do no harm."""
    body = ast.parse(path.read_text()).body
    is_empty = all(isinstance(node, ast.Expr) for node in body)

    assert is_empty or "from __future__ import annotations" in path.read_text()


def test_the_folder_has_nothing_else_in_it() -> None:
    """It is on the module search path of other people's programs."""
    names = {path.name for path in HOOK_DIR.iterdir()} - {"__pycache__"}

    assert names == {"__init__.py", "sitecustomize.py", "memgate_hook"}


@pytest.mark.parametrize(
    ("watch", "seen", "seconds", "want"),
    [
        (Watch(), Seen(MIN_STEPS - 1, False), 1e6, None),
        (Watch(), Seen(MIN_STEPS, False), 0, None),
        (Watch(), Seen(MIN_STEPS, False), 31, "time"),
        (Watch(), Seen(MIN_STEPS, True), 0, None),
        (Watch(), Seen(64, True, num_evaluations=1), 0, None),
        (Watch(), Seen(64, True, num_evaluations=2), 0, "evaluation"),
        (Watch(), Seen(MIN_STEPS, True), 29, None),
        (Watch(), Seen(MIN_STEPS, True), 31, "evaluation"),
        (Watch(), Seen(MIN_STEPS, True, worked_seconds=5.1), 0, "evaluation"),
        (Watch(usual_steps=0), Seen(MIN_STEPS, True), 0, "evaluation"),
        (Watch(steps=2), Seen(1, True), 1e6, None),
        (Watch(steps=2), Seen(2, False), 0, "steps"),
        (Watch(until="evaluation"), Seen(99, False), 1e6, None),
        (Watch(until="evaluation"), Seen(99, True, num_evaluations=2), 0, "evaluation"),
        (Watch(until="end"), Seen(99, True), 1e6, None),
        (Watch(), Seen(MIN_STEPS, True, is_longest_due=True), 0, None),
        (Watch(seconds=0.0), Seen(MIN_STEPS, False, is_longest_due=True), 1, None),
        (Watch(seconds=0.0), Seen(MIN_STEPS, False, is_longest_due=True), 31, "time"),
        (Watch(steps=4), Seen(MIN_STEPS, False, is_longest_due=True), 0, "steps"),
    ],
)
def test_a_job_is_watched_until_it_shows_nothing_new(
    watch: Watch, seen: Seen, seconds: float, want: str | None
) -> None:
    """Steps, an evaluation, or time, as the caller wants it; the same in the job's process."""
    assert watch.why_stop(seen, seconds) == want
    assert Watch.from_environment(watch.to_environment()) == watch
