"""Timeline files on the command line: asked about like specs, written by ``-o``."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from memgate.gpus import CATALOGUE, parse_gpu
from memgate.timeline_file.answers import estimate_recorded
from memgate.timeline_file.reading import read_timeline
from memgate.timeline_file.writing import write_timeline
from memgate_worker import local
from memgate_worker.engines.traced import TracedJob
from memgate_worker.runtimes.runtime import read_runtimes
from tests.conftest import DATA
from tests.timeline_files import make_plain

FILE = DATA / "timelines" / "resnet18-format-1.0.memgate"


def test_a_timeline_file_is_asked_about_like_a_spec(run: Any, tmp_path: Path) -> None:
    """Whatever its name is; with a picture and a curve."""
    path, picture, curve = tmp_path / "job.yaml", tmp_path / "a.png", tmp_path / "a.csv"
    path.write_bytes(FILE.read_bytes())

    ran = run("estimate", path, "--gpu=rtx-3060", "--plot", picture, "--curve", curve, "--json")

    said = json.loads(ran.out)
    assert (ran.status, said["decision"], said["engine"]) == (0, "admit", "phantom")
    assert said["runtime"] == "torch 2.14.1, no cuDNN"
    assert said["recording"]["command"] == "python train.py --batch-size 16"
    assert set(said["phases"]) == {"load", "train"}
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert curve.read_text().startswith("event,phase,reserved_bytes")


def test_people_see_what_was_recorded(run: Any) -> None:
    """The command, the GPU, the peak of each phase, and how to record it for another GPU."""
    ran = run("estimate", FILE, "--gpu", "rtx-3060")
    other = run("estimate", FILE, "--gpu", "a100-80")

    assert "recorded for rtx-3060: python train.py --batch-size 16" in ran.out
    assert "peak by phase: load 445.47 MiB, train 1001.47 MiB" in ran.out
    assert other.status == 4
    assert "memgate run --gpu a100-80 -- python train.py --batch-size 16" in other.out


def test_settings_of_the_allocator_are_replayed(run: Any) -> None:
    """What-if costs no run."""
    own = json.loads(run("estimate", FILE, "--gpu=rtx-3060", "--json").out)
    conf = "expandable_segments:True"
    other = run("estimate", FILE, "--gpu=rtx-3060", f"--allocator={conf}", "--json")

    assert json.loads(other.out)["peak_reserved_bytes"] < own["peak_reserved_bytes"]


def test_a_timeline_file_comes_from_standard_input(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a spec does."""
    given = io.BufferedReader(io.BytesIO(FILE.read_bytes()))
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=given, isatty=lambda: False))

    assert run("estimate", "-", "--gpu", "rtx-3060", "--json").status == 0


def test_every_gpu_is_answered_for(run: Any) -> None:
    """By replay; exit 3 if it fits nowhere."""
    ran = run("fit", FILE, "--json")
    other = run("fit", FILE, "--allocator", "expandable_segments:True", "--json")

    assert (ran.status, json.loads(ran.out)["smallest"]) == (0, "rtx-3060")
    assert json.loads(other.out)["smallest"] == "rtx-3060"


def test_analyze_takes_a_timeline_file_too(run: Any, tmp_path: Path) -> None:
    """With its layers, if it has any."""
    bare = tmp_path / "bare.memgate"
    bare.write_bytes(write_timeline(make_plain()))

    ran = run("analyze", FILE, "--gpu", "rtx-3060", "--json")
    plain = run("analyze", bare, "--gpu", "rtx-3060")

    assert json.loads(ran.out)["layers"]["children"]
    assert (plain.status, "by layer" in plain.out) == (0, False)


@pytest.mark.parametrize(
    ("words", "want"),
    [
        (["max-batch", FILE, "--gpu=t4"], "this is a timeline file: memgate estimate"),
        (["estimate", FILE, "--gpu=t4", "--engine=phantom"], "--engine is for a job that is run"),
        (["estimate", FILE, "--gpu=t4", "--runtime=torch-2.6"], "--runtime is for a job that is"),
        (["estimate", FILE, "--gpu=t4", "-o", "x"], "-o is for a job that is run"),
        (["estimate", FILE, "--gpu=t4", "--allocator=x:1"], "Unrecognized"),
        (["estimate", FILE, "--gpu=t4", "--", "--more"], "only a script takes arguments"),
        (["estimate", FILE, "--gpu=t4", "--ignore-compile"], "--ignore-compile is for scripts"),
        (["fit", FILE, "--engine=phantom"], "is a timeline file: leave out --engine"),
        (["fit", FILE, "--allocator=x:1"], "Unrecognized"),
        (["estimate", "missing.memgate", "--gpu=t4"], "missing.memgate: No such file"),
        (
            ["estimate", "tests/data/scripts/plain_loop.py", "--gpu=t4", "--allocator=a:1"],
            "--allocator is for job specs and timeline files",
        ),
        (
            ["estimate", FILE, "--gpu=t4", "-o", "x", "--server=http://127.0.0.1:1"],
            "--output works on this machine only",
        ),
    ],
)
def test_what_does_not_go_with_a_timeline_file_is_refused(
    run: Any, words: list[Any], want: str
) -> None:
    """In a sentence; exit 2."""
    ran = run(*words)

    assert (ran.status, want in ran.err) == (2, True), ran.err


def test_a_broken_file_is_named(run: Any, tmp_path: Path) -> None:
    """With what is wrong with it."""
    path = tmp_path / "broken.memgate"
    path.write_bytes(FILE.read_bytes()[:-5])

    ran = run("estimate", path, "--gpu", "t4")

    assert (ran.status, ran.err.count(f"{path}: the file is cut off")) == (2, 1)


SPEC = """
model: {source: torchvision, name: resnet18}
input: {shape: [3, 64, 64]}
batch_size: 2
"""


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer every spec and script without an engine."""
    traced = TracedJob(
        timeline=make_plain().timeline,
        engine="phantom",
        runtime="torch-2.14",
        versions={"torch": "2.14.1"},
        alloc_conf="",
        num_parameters=7,
        notes=(),
        cudnn_benchmark=True,
        seconds=0.0,
    )
    said = estimate_recorded(make_plain(), parse_gpu("rtx-3060"))
    said = said.model_copy(update={"timings_ms": {"total": 0}})
    found = local.LocalAnswer(estimate=said, traced=traced)
    for name in ("estimate_spec", "estimate_script"):
        monkeypatch.setattr(f"memgate_service.cli.commands.estimate.{name}", lambda *_, **__: found)


@pytest.mark.usefixtures("answer")
def test_a_run_is_kept_as_a_timeline_file(run: Any, tmp_path: Path) -> None:
    """Of a spec, and of a script with how it is started."""
    spec, script = tmp_path / "job.yaml", tmp_path / "train.py"
    spec.write_text(SPEC)
    script.write_text("")
    files = [tmp_path / "spec.memgate", tmp_path / "script.memgate"]

    run("estimate", spec, "--gpu=a100-80", "--allocator=max_split_size_mb:50", "-o", files[0])
    run("estimate", script, "--gpu=a100-80", "-o", files[1], "--", "--epochs", "3")

    of_spec, of_script = (read_timeline(file.read_bytes()) for file in files)
    assert (of_spec.command, of_script.command) == ((), ("python", str(script), "--epochs", "3"))
    assert of_spec.gpu.name == "a100-80"
    assert of_spec.gpu.traits.memory_bytes == CATALOGUE["a100-80"].memory_bytes
    runtime = read_runtimes()["torch-2.14"]
    assert of_spec.cudnn == (runtime.cudnn if runtime.has_cudnn else None)


@pytest.mark.usefixtures("answer")
@pytest.mark.parametrize(
    ("name", "want"),
    [("no/x.memgate", "there is no such folder"), ("there", "the file is there already")],
)
def test_a_timeline_file_that_cannot_be_written_is_refused_first(
    run: Any, tmp_path: Path, name: str, want: str
) -> None:
    """Nothing is overwritten."""
    spec = tmp_path / "job.yaml"
    spec.write_text(SPEC)
    (tmp_path / "there").write_text("mine")

    ran = run("estimate", spec, "--gpu", "t4", "-o", tmp_path / name)

    assert (ran.status, want in ran.err) == (2, True)
    assert (tmp_path / "there").read_text() == "mine"
