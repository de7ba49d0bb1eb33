"""``memgate slurm``: what it refuses, and what it says without a Slurm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

RELEASE = ("slurm", "release", "--once")


@pytest.fixture(autouse=True)
def _no_slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Have a machine without Slurm and without settings."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("MEMGATE_URL", raising=False)


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ((), "no server is named"),
        (
            ("--server", "http://x", "--rejected", "release"),
            "--rejected is 'release': it must be one of",
        ),
        (("--server", "http://x", "--uncertain", "no"), "one of release, cancel, hold"),
        (("--server", "http://x", "--unanswered", "cancel"), "one of wait, release, hold"),
        (("--server", "http://x", "--key-file", "/nonexistent"), "--key-file /nonexistent"),
    ],
)
def test_wrong_options_are_named(run: Any, options: tuple[str, ...], want: str) -> None:
    """Exit status 2, and what would be right. A rejected job is never let in by an option."""
    ran = run(*RELEASE, *options)

    assert ran.status == 2
    assert want in ran.err


@pytest.mark.parametrize(("command", "program"), [("release", "squeue"), ("outcomes", "sacct")])
def test_without_slurm_it_says_so(run: Any, command: str, program: str, tmp_path: Path) -> None:
    """One sentence with the program that is missing."""
    memory = ["--memory", tmp_path / "memory.json"] if command == "outcomes" else []
    ran = run("slurm", command, "--once", "--server", "http://127.0.0.1:9", *memory)

    assert ran.status == 1
    assert f"memgate: {program} cannot be run: No such file or directory" in ran.err
