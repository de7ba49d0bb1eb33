"""``memgate init``: a first spec in a new file."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from memgate.convert import SCHEMA_LINE

FLAGS = ("--input", "64", "--batch-size", "8", "--optimizer", "adamw", "--precision", "bf16")


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write a script of which all but the size of images can be read."""
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "train.py"
    path.write_text(
        "import torch, torchvision\nBATCH_SIZE = 8\n"
        "torch.optim.Adam(torchvision.models.vgg16().parameters())\n"
    )
    return path


def test_flags_are_answers(run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No terminal is needed; the file says which schema it has."""
    monkeypatch.chdir(tmp_path)
    ran = run("init", "--model", "GPT2", *FLAGS)

    text = (tmp_path / "job.yaml").read_text()
    assert ran.status == 0
    assert text.startswith(f"{SCHEMA_LINE}\n")
    assert yaml.safe_load(text) == {
        "model": {"source": "transformers", "name": "openai-community/gpt2"},
        "input": {"sequence_length": 64},
        "batch_size": 8,
        "optimizer": {"name": "AdamW"},
        "precision": "bf16",
    }


def test_a_file_is_overwritten_only_if_told(run: Any, script: Path) -> None:
    """With --force, and never a folder."""
    assert run("init", script, "--input", "224").status == 0
    again = run("init", script, "--input", "96")
    assert again.status == 2
    assert "add --force" in again.err

    assert run("init", script, "--input", "96", "--force").status == 0
    assert yaml.safe_load(Path("job.yaml").read_text())["input"] == {"shape": [3, 96, 96]}
    assert run("init", script, "-o", script.parent, "--force").status == 2


def test_what_a_script_lacks_is_said(run: Any, script: Path) -> None:
    """As comments in the file and on standard error; exit 4."""
    ran = run("init", script, "-o", "-")

    assert ran.status == 4
    assert "# not found: input" in ran.out
    assert "not found: input; add it" in ran.err
    assert yaml.safe_load(ran.out)["model"]["name"] == "vgg16"


def test_a_script_in_another_encoding_is_refused(run: Any, script: Path) -> None:
    """With the byte."""
    script.write_bytes(b"\xff\xfe")

    ran = run("init", script, "-o", "-")

    assert ran.status == 2
    assert "train.py: this is not UTF-8, from byte 0 on" in ran.err


def test_a_config_is_converted(run: Any, script: Path) -> None:
    """With what is given beside it."""
    config = script.with_name("config.yml")
    config.write_text("base_model: nobody/knows\nsequence_len: 8\nmicro_batch_size: 1\n")

    ran = run("init", config, "-o", "-", "--model", "gpt2", "--input", "64", "--batch-size", "3")

    spec = yaml.safe_load(ran.out)
    assert ran.status == 0
    assert spec["model"]["name"] == "openai-community/gpt2"
    assert (spec["input"], spec["batch_size"]) == ({"sequence_length": 64}, 3)


def test_without_a_terminal_the_options_are_named(run: Any, script: Path) -> None:
    """Those that are missing."""
    ran = run("init", "--model", "gpt2", "--batch-size", "3")

    assert ran.status == 2
    assert "add --input, --optimizer, --precision, or give a script or a config" in ran.err


def _in_a_terminal(arguments: list[str], answers: list[str], folder: Path) -> tuple[int, str]:
    """Run ``memgate`` in a terminal of its own, type the answers, and return what was shown."""
    ours, theirs = pty.openpty()
    code = "from memgate_service.cli.main import main; main()"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=theirs,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        cwd=folder,
    )
    os.close(theirs)
    os.write(ours, "".join(f"{answer}\n" for answer in answers).encode())
    shown = b""
    try:
        while part := os.read(ours, 4096):
            shown += part
    except OSError:  # the terminal ends with the process
        pass
    os.close(ours)
    return process.wait(), shown.decode()


def test_questions_have_defaults_and_near_names(tmp_path: Path) -> None:
    """A wrong answer is asked again; an empty one is the default, which follows from the model."""
    answers = ["gpt3", "gpt2", "", "4", "Admw", "Adam", ""]

    status, shown = _in_a_terminal(["init"], answers, tmp_path)

    assert status == 0, shown
    assert "did you mean 'openai-community/gpt2'" in shown
    assert "did you mean 'Adam" in shown
    assert yaml.safe_load((tmp_path / "job.yaml").read_text()) == {
        "model": {"source": "transformers", "name": "openai-community/gpt2"},
        "input": {"sequence_length": 512},
        "batch_size": 4,
        "optimizer": {"name": "Adam"},
        "precision": "fp32",
    }


def test_something_that_never_answers_right_is_left(tmp_path: Path) -> None:
    """It may not be a person; what is given as an option is not asked."""
    arguments = ["init", "--model", "timm:vit_tiny_patch16_224", "--input", "224"]

    status, shown = _in_a_terminal(arguments, ["none"] * 5, tmp_path)

    assert status == 2
    assert "batch_size: 5 wrong answers" in shown
    assert not (tmp_path / "job.yaml").exists()
