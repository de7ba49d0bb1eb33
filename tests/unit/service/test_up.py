"""``memgate up`` before anything is started: a missing runtime is offered."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import typer

from memgate_service.cli.commands import up
from memgate_worker.runtimes.runtime import DEFAULT_RUNTIME, named_runtime
from tests.runtimes import pretend_installed


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of what is installed, which would take minutes."""
    monkeypatch.setenv("MEMGATE_RUNTIMES_DIR", str(tmp_path))
    names: list[str] = []
    monkeypatch.setattr(up, "install_shown", lambda runtime, **_: names.append(runtime.name))
    return names


def _at_a_terminal(monkeypatch: pytest.MonkeyPatch, answer: str) -> list[str]:
    asked: list[str] = []

    def confirm(question: str, **_: Any) -> bool:
        asked.append(question)
        return answer == "y"

    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(typer, "confirm", confirm)
    return asked


@pytest.mark.parametrize(("answer", "want"), [("y", [DEFAULT_RUNTIME]), ("n", [])])
def test_at_a_terminal_it_asks(
    installed: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    answer: str,
    want: list[str],
) -> None:
    """With how much space it takes, and where."""
    asked = _at_a_terminal(monkeypatch, answer)

    up._offer_runtime(yes=False)

    assert asked == [f"install it now, 1.97 GiB in {tmp_path}?"]
    assert installed == want


@pytest.mark.parametrize(("yes", "want"), [(True, [DEFAULT_RUNTIME]), (False, [])])
def test_elsewhere_it_does_not_ask(
    installed: list[str], monkeypatch: pytest.MonkeyPatch, yes: bool, want: list[str]
) -> None:
    """A service that nobody looks at goes on without; ``--yes`` is said beforehand."""
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)

    up._offer_runtime(yes=yes)

    assert installed == want


def test_what_is_there_is_not_offered(
    installed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is asked."""
    asked = _at_a_terminal(monkeypatch, "y")
    pretend_installed(named_runtime(None))

    up._offer_runtime(yes=True)

    assert (asked, installed) == ([], [])
