"""``memgate pack``: one directory, which works where there is neither a compiler nor memgate."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.recording import RUNTIME, needs_runtime

pytestmark = needs_runtime

TRAIN = """
import torch
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1)
for _ in range(5):
    model(torch.zeros(8, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def _without_a_compiler(tmp_path: Path) -> dict[str, str]:
    """Return variables of a machine that has a Python, a shell, and little else."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "python3").symlink_to(os.path.realpath(sys.executable))
    for name in ("dirname", "sh"):
        (programs / name).symlink_to(f"/usr/bin/{name}")
    home = tmp_path / "home"
    home.mkdir()
    return {"PATH": str(programs), "HOME": str(home)}


def test_a_packed_directory_answers_where_there_is_no_compiler(run: Any, tmp_path: Path) -> None:
    """Its timeline file is read outside; nothing is written to it, or to the home directory."""
    target = tmp_path / "packed"
    ran = run("pack", target, "--torch", RUNTIME.venv)
    assert ran.status == 0, ran.err
    assert "stand-ins for torch: 2.14" in ran.out
    moved = target.rename(tmp_path / "moved")
    before = sorted(moved.rglob("*"))
    (tmp_path / "train.py").write_text(TRAIN)
    environment = _without_a_compiler(tmp_path)

    options = ["--gpu", "t4", "--json", "-o", "job.memgate"]
    done = subprocess.run(
        [moved / "bin/memgate", "run", *options, "--", RUNTIME.python, "train.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["decision"] == "admit"
    assert sorted(moved.rglob("*")) == before
    assert list(Path(environment["HOME"]).iterdir()) == []
    assert run("estimate", tmp_path / "job.memgate", "--gpu", "t4").status == 0


def test_the_version_of_python_that_is_missing_is_named(run: Any, tmp_path: Path) -> None:
    """Compiled parts are for one of them."""
    assert run("pack", tmp_path / "packed").status == 0
    environment = _without_a_compiler(tmp_path)
    (tmp_path / "programs" / "python3").unlink()

    done = subprocess.run(
        [tmp_path / "packed/bin/memgate", "gpus"], env=environment, capture_output=True, text=True
    )

    assert done.returncode == 1
    assert f"was packed for Python 3.{sys.version_info.minor}, and there is none" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        (["taken"], "there is something of that name already"),
        (["new", "--torch", "taken"], "--torch taken: there is no torch"),
        (["no/such/folder"], "was not made: No such file or directory"),
    ],
    ids=["a directory that exists", "no torch", "no parent"],
)
def test_what_cannot_be_packed_is_said(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], want: str
) -> None:
    """Nothing is left behind."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()

    ran = run("pack", *arguments)

    assert ran.status in {1, 2}
    assert want in ran.err
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]
