"""Programs that start a job in an environment which they keep: ``poetry run`` and its like.

``make test-environments`` installs them; ``conda`` is not on PyPI, so what it does is done here.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.recording import RUNTIME, needs_runtime
from tests.integration.test_environments import HOME

pytestmark = [needs_runtime, pytest.mark.environments]

TOOLS = HOME / "tools" / "bin"

TRAIN = """
import torch
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1)
for _ in range(5):
    model(torch.zeros(8, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""

PROJECT = """
[project]
name = "lab"
version = "1.0"
requires-python = ">=3.11"
"""

#: how each makes its environment, in the project's folder, and starts a job in it
LAUNCHERS = {
    "poetry": (
        "[tool.poetry]\npackage-mode = false\n",
        ["poetry", "install"],
        ["poetry", "run", "python", "train.py"],
    ),
    "hatch": (
        "[tool.hatch.envs.default]\nskip-install = true\n",
        ["hatch", "env", "create"],
        ["hatch", "run", "python", "train.py"],
    ),
    "pdm": (
        "[tool.pdm]\ndistribution = false\n[tool.pdm.scripts]\ntrain = 'python train.py'\n",
        ["pdm", "install"],
        ["pdm", "run", "train"],
    ),
    "uv": ("", ["uv", "sync", "--offline"], ["uv", "run", "--offline", "train.py"]),
}


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a job, in which all that launchers make stays, too."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POETRY_VIRTUALENVS_IN_PROJECT", "true")
    monkeypatch.setenv("HATCH_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("UV_PYTHON", sys.executable)
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def _give_torch(folder: Path) -> None:
    """Have an environment see the libraries of our runtime, instead of 5 GB of its own."""
    (packages,) = folder.rglob("lib/python3.*/site-packages")
    (packages / "torch.pth").write_text(str(RUNTIME.site_packages))


def _ask(run: Any, command: list[str]) -> dict[str, Any]:
    ran = run("run", "--gpu", "t4", "--json", "--", *command)
    assert ran.status == 0, ran.err
    return dict(json.loads(ran.out))


@pytest.mark.parametrize("name", LAUNCHERS)
def test_a_launcher_starts_a_job(run: Any, project: Path, name: str) -> None:
    """In the environment that it made before."""
    if not (TOOLS / name).exists():
        pytest.skip(f"there is no {TOOLS / name}: make test-environments")
    settings, make, start = LAUNCHERS[name]
    (project / "pyproject.toml").write_text(PROJECT + settings)
    subprocess.run([TOOLS / make[0], *make[1:]], check=True, capture_output=True)
    _give_torch(project)

    answer = _ask(run, [str(TOOLS / start[0]), *start[1:]])

    assert answer["breakdown"]["parameters"] == 256 * 257 * 4


def test_what_conda_does_starts_a_job(run: Any, project: Path) -> None:
    """It writes a script that activates the environment, runs it, and shows its output later."""
    environment = project / "environment"
    subprocess.run([RUNTIME.python, "-m", "venv", "--without-pip", environment], check=True)
    _give_torch(environment)
    hooks = environment / "etc" / "conda" / "activate.d"
    hooks.mkdir(parents=True)
    (hooks / "lab.sh").write_text("export LAB=activated\n")
    (project / "train.py").write_text(
        f"import os; assert os.environ['LAB'] == 'activated'\n{TRAIN}"
    )
    launcher = project / "conda-run"
    launcher.write_text(
        f"""#!{sys.executable}
import os, subprocess, sys, tempfile
with tempfile.NamedTemporaryFile("w", prefix="script", delete=False) as script:
    script.write(". {hooks}/lab.sh\\nexport PATH={environment}/bin:$PATH CONDA_SHLVL=1\\n")
    script.write("export CONDA_PREFIX={environment}\\n")
    script.write(" ".join(sys.argv[1:]) + "\\n")
done = subprocess.run(["/bin/bash", script.name], capture_output=True, env=dict(os.environ))
sys.stdout.buffer.write(done.stdout + done.stderr)
os.remove(script.name)
sys.exit(done.returncode)
"""
    )
    launcher.chmod(launcher.stat().st_mode | stat.S_IXUSR)

    answer = _ask(run, ["./conda-run", "python", "train.py"])

    assert answer["breakdown"]["parameters"] == 256 * 257 * 4
    assert not os.path.exists(project / "__pycache__")
