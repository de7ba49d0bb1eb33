"""Other questions about a command: its recording, its largest batch, every GPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memgate.gpus import CATALOGUE
from memgate_worker.recorder import everywhere
from tests.integration.recording import (
    RUNTIME,
    TRAIN,
    needs_runtime,
)

pytestmark = needs_runtime


def test_a_recording_answers_later_questions(run: Any, tmp_path: Path) -> None:
    """The same answer for the GPU that it was made for, without running anything."""
    path, kept = tmp_path / "train.py", tmp_path / "job.memgate"
    path.write_text(TRAIN + "for _ in range(5): step()\nevaluate(99)\n")

    ran = run("run", "--gpu", "t4", "--json", "-o", kept, "--", RUNTIME.python, path)
    asked = run("estimate", kept, "--gpu", "t4", "--json")
    other = run("estimate", kept, "--gpu", "a100-80", "--json")

    now, later = json.loads(ran.out), json.loads(asked.out)
    assert (now["decision"], now["needs_bytes"]) == (later["decision"], later["needs_bytes"])
    assert now["phases"] == later["phases"]
    assert [*now["phases"]] == ["load", "train", "evaluate"]
    assert json.loads(other.out)["decision"] == "uncertain"
    assert "RECORDED_FOR_ANOTHER_GPU" in other.out


BATCHES = """
size = int(sys.argv[1])
model = torch.nn.Sequential(*[torch.nn.Linear(2048, 2048) for _ in range(8)]).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(5):
    model(torch.zeros(size, 64, 2048, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_the_largest_batch_of_a_command_is_found_and_proved(run: Any, tmp_path: Path) -> None:
    """Two runs tell the line; the result is run, and so is the next, which is too much."""
    path = tmp_path / "train.py"
    path.write_text(TRAIN + BATCHES)

    ran = run("max-batch", "--gpu", "t4", "--json", "--", RUNTIME.python, path, "{batch}")

    found = json.loads(ran.out)
    assert (ran.status, found["estimate"]["decision"]) == (0, "admit")
    decisions = {one["batch_size"]: one["decision"] for one in found["tried"]}
    assert len(found["tried"]) == len(decisions) <= 5
    size = found["batch_size"]
    assert (decisions[size], decisions[size + 1] == "admit") == ("admit", False)


def test_a_command_without_a_place_for_the_batch_is_told_where(run: Any) -> None:
    """It would be run at one size again and again."""
    ran = run("max-batch", "--gpu", "t4", "--", "python", "train.py")

    assert ran.status == 2
    assert "the command has no {batch}: write it where the batch size goes" in ran.err


def test_a_command_is_asked_about_for_every_gpu(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One run for GPUs on which it does the same; those without kernels are unknown."""
    names = ("p100-16", "a100-40", "a100-80")
    monkeypatch.setattr(everywhere, "CATALOGUE", {name: CATALOGUE[name] for name in names})
    path = tmp_path / "train.py"
    path.write_text(TRAIN + "for _ in range(5): step()\n")

    ran = run("fit", "--json", "--", RUNTIME.python, path)

    fit = json.loads(ran.out)
    assert {entry["gpu"]: entry["decision"] for entry in fit["gpus"]} == {
        "p100-16": "unknown",
        "a100-40": "admit",
        "a100-80": "admit",
    }
    assert fit["smallest"] == "a100-40"
