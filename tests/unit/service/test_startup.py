"""The command line starts at once: a command is imported when it is run."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from typer.main import get_command

from memgate_service.cli.lazy import COMMANDS
from memgate_service.cli.main import app

#: what no command needs that only says something
_HEAVY = {
    *("cachetools", "fastapi", "httpx2", "jinja2", "kubernetes", "matplotlib", "numpy"),
    *("pydantic_settings", "redis", "rq", "starlette", "structlog", "uvicorn"),
}

_MAIN = """
import atexit, sys
sys.argv[0] = "memgate"
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
from memgate_service.cli.main import main
main()
"""


def _modules(*arguments: str, **environment: str) -> tuple[str, set[str]]:
    """Run ``memgate``; return what it prints and what it has imported."""
    ran = subprocess.run(
        [sys.executable, "-c", _MAIN, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout, {name.partition(".")[0] for name in ran.stderr.split()}


def test_the_version_loads_next_to_nothing() -> None:
    """Neither pydantic nor the packages of any command."""
    out, loaded = _modules("--version")

    assert out.startswith("memgate ")
    assert not loaded & (_HEAVY | {"memgate_worker", "msgspec", "pydantic", "rich", "yaml"})


def test_the_shell_completes_names_of_commands_as_fast() -> None:
    """It asks at each press of a key."""
    out, loaded = _modules(
        _MEMGATE_COMPLETE="complete_bash", COMP_WORDS="memgate est", COMP_CWORD="1"
    )

    assert out.split() == ["estimate"]
    assert not loaded & (_HEAVY | {"memgate_worker", "msgspec", "yaml"})  # typer needs pydantic


def test_the_shell_completes_options_of_a_command() -> None:
    """For which that one command is imported."""
    out, loaded = _modules(
        _MEMGATE_COMPLETE="complete_bash", COMP_WORDS="memgate estimate --host", COMP_CWORD="2"
    )

    assert out.split() == ["--host-memory"]
    assert not loaded & _HEAVY


@pytest.mark.parametrize("command", [("--help",), ("gpus",), ("estimate", "--help")])
def test_a_command_loads_only_what_it_needs(command: tuple[str, ...]) -> None:
    """No plots, no settings, no web framework, no queue."""
    _, loaded = _modules(*command)

    assert not loaded & _HEAVY


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_the_list_says_what_the_command_says(command: Any) -> None:
    """Its name, and the first sentence of its own help."""
    loaded = command.load()

    assert loaded.name == command.name
    assert " ".join(loaded.help.split()).startswith(command.summary)


def test_a_command_that_was_not_imported_is_our_bug() -> None:
    """Stubs are listed and never run."""
    stub = get_command(app).commands["fit"]  # type: ignore[attr-defined]

    with pytest.raises(AssertionError, match="fit was not imported"):
        stub.callback()


def test_completion_does_without_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell would show an error in the middle of a line."""
    monkeypatch.setitem(sys.modules, "httpx2", None)
    group = get_command(app)
    context = group.make_context("memgate", ["slurm"], resilient_parsing=True)
    monkeypatch.setattr(type(COMMANDS["slurm"]), "load", _missing)

    name, _, rest = group.resolve_command(context, ["slurm", "release"])  # type: ignore[attr-defined]

    assert (name, rest) == ("slurm", ["release"])


def _missing(*_: Any) -> Any:
    from memgate.errors import MissingExtraError

    raise MissingExtraError("this needs httpx2")
