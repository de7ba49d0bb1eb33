"""``MEMGATE_GPUS``: the file with the operator's own GPUs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memgate.errors import OwnGpusError
from memgate.gpus import CATALOGUE, find_gpu, use_own_gpus
from memgate.units import GIB
from memgate_worker.own_gpus import load_own_gpus
from memgate_worker.queue.settings import QueueSettings

YAML = """
gpus:
  - name: lab-gpu
    like: a100-80
    memory_bytes: 68098719744  # 63.42 GiB
"""


@pytest.fixture(autouse=True)
def _without_own() -> Iterator[None]:
    yield
    use_own_gpus(())


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that the variable names."""
    path = tmp_path / "gpus.yaml"
    monkeypatch.setenv("MEMGATE_GPUS", str(path))
    return path


@pytest.mark.parametrize(
    "text", [YAML, json.dumps({"gpus": [{"name": "lab-gpu", "like": "a100-80"}]})]
)
def test_a_file_is_yaml_or_json(named: Path, text: str) -> None:
    """Reading it again changes nothing."""
    named.write_text(text)

    load_own_gpus()
    load_own_gpus()

    assert find_gpu("lab-gpu").multiprocessors == 108


def test_the_variable_may_hold_the_document_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """For pods, which then need no volume."""
    monkeypatch.setenv("MEMGATE_GPUS", '{"gpus": [{"name": "lab-gpu", "like": "t4"}]}')
    load_own_gpus()
    assert find_gpu("lab-gpu").memory_bytes == CATALOGUE["t4"].memory_bytes

    monkeypatch.setenv("MEMGATE_GPUS", '{"gpus": [{"name": "lab-gpu", "like": "t5"}]}')
    with pytest.raises(OwnGpusError, match=r"^MEMGATE_GPUS: gpus.0 .lab-gpu.: like is 't5': it is"):
        load_own_gpus()


def test_without_a_file_there_are_the_built_in_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty variable is none."""
    for value in ("", None):
        monkeypatch.delenv("MEMGATE_GPUS", raising=False)
        if value is not None:
            monkeypatch.setenv("MEMGATE_GPUS", value)
        load_own_gpus()
        assert "lab-gpu" not in CATALOGUE


@pytest.mark.parametrize(
    ("content", "want"),
    [
        (None, "No such file"),
        (b"\xff", "it is not UTF-8"),
        (b"gpus: [", "neither JSON nor YAML"),
        (b"gpus: [{name: x}]", "gpus.0 (x): memory_bytes: without 'like' it must be given"),
    ],
)
def test_a_wrong_file_is_the_operators_fault(named: Path, content: bytes | None, want: str) -> None:
    """It is named, with what is wrong in it; a program does not start with it."""
    if content is not None:
        named.write_bytes(content)

    with pytest.raises(OwnGpusError) as raised:
        load_own_gpus()
    with pytest.raises(SystemExit) as ended:
        QueueSettings.from_environment()

    assert raised.value.message.startswith(f"MEMGATE_GPUS is '{named}': ")
    assert want in raised.value.message
    assert ended.value.code == raised.value.message


def test_programs_know_the_file_once_they_have_settings(named: Path) -> None:
    """Service, worker and gate read the environment in one place."""
    named.write_text(YAML)

    QueueSettings.from_environment()

    assert find_gpu("lab-gpu").memory_bytes == 68098719744


def test_the_command_line_knows_the_file(named: Path) -> None:
    """``memgate gpus``, and any other command; a version needs no file."""

    def run(*arguments: str) -> Any:
        start = "from memgate_service.cli.main import main; main()"
        command = [sys.executable, "-c", start, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    named.write_text(YAML)
    (found,) = json.loads(run("gpus", "lab-gpu", "--json").stdout)
    assert (found["memory_bytes"], found["source"][:20]) == (68098719744, "the operator's own e")
    assert found["memory_bytes"] < 64 * GIB

    named.write_text("gpus: 7")
    assert run("--version").returncode == 0
    said = run("gpus")
    assert (said.returncode, said.stdout) == (1, "")
    assert "gpus is 7" in said.stderr
