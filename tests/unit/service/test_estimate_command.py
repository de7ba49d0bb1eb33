"""Commands around the engine that need none: catalogue, runtimes, bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memgate.errors import NotModelledError
from memgate_worker import local

SCRIPT = "tests/data/scripts/plain_loop.py"
SPEC = '{"model": {"source": "torchvision", "name": "vgg16"}, "input": {"shape": [3, 8, 8]}, '


def test_gpus_are_listed(run: Any) -> None:
    """For people and for programs."""
    assert "rtx-3060" in run("gpus").out
    names = [gpu["name"] for gpu in json.loads(run("gpus", "--json").out)]
    assert "a100-80" in names


def test_public_models_are_listed(run: Any) -> None:
    """By a part of their names, in any case; what is near if there is none."""
    shown = run("models", "LLAMA-2-7b").out
    (first, *_) = json.loads(run("models", "gpt2", "--json").out)

    assert "meta-llama/Llama-2-7b-hf" in shown
    assert "6.74 B" in shown
    assert "gpt2" not in shown
    assert {"name", "source", "class", "config", "parameters", "sources"} == first.keys()
    assert "'meta-llama/Llama-2-7b-hf'" in run("models", "llama2-7b").err
    assert json.loads(run("models", "llama2-7b", "--json").out) == []


def test_runtimes_are_listed_with_how_to_get_them(run: Any) -> None:
    """Installed, or the command that installs it."""
    assert "torch-2.6" in run("runtimes").out
    assert {row["name"] for row in json.loads(run("runtimes", "--json").out)} >= {"torch-2.14"}


@pytest.mark.parametrize(
    ("text", "options", "want_message"),
    [
        ("{", [], "neither JSON nor YAML"),
        ("[]", [], "job spec: the whole is []"),
        (SPEC + '"batch_size": 0}', [], "batch_size is 0: it must be at least 1"),
        (
            SPEC + '"batch_size": 1}',
            ["--engine", "magic"],
            "engine is 'magic': there is no such engine",
        ),
        (
            SPEC + '"batch_size": 1, "runtime": "x"}',
            [],
            "runtime is 'x': there is no such runtime; there are: ",
        ),
    ],
)
def test_a_bad_request_is_a_sentence(
    run: Any, tmp_path: Path, text: str, options: list[str], want_message: str
) -> None:
    """The file, the field, the value, the rule; exit 2."""
    path = tmp_path / "job.json"
    path.write_text(text)

    ran = run("estimate", path, "--gpu", "rtx-3060", *options)

    assert ran.status == 2
    assert want_message in ran.err


@pytest.mark.parametrize("command", [["estimate", "--gpu=t4"], ["max-batch", "--gpu=t4"], ["fit"]])
def test_an_unknown_engine_is_named_where_no_runtime_is(
    run: Any, tmp_path: Path, command: list[str]
) -> None:
    """The caller's mistake comes before what the operator has to install."""
    path = tmp_path / "job.json"
    path.write_text(SPEC + '"batch_size": 1}')

    ran = run(*command, "--engine", "magic", path)

    assert ran.status == 2
    assert "engine is 'magic': there is no such engine" in ran.err


def test_an_unknown_gpu_is_a_sentence(run: Any, tmp_path: Path) -> None:
    """The catalogue is in the message."""
    path = tmp_path / "job.json"
    path.write_text(SPEC + '"batch_size": 1}')

    ran = run("estimate", path, "--gpu", "gtx")

    assert ran.status == 2
    assert "gpu is 'gtx': it is not in the catalogue" in ran.err


def test_a_script_for_the_profile_engine_is_told_its_way(run: Any) -> None:
    """The two commands that lead to an answer."""
    ran = run("estimate", SCRIPT, "--gpu", "t4", "--engine", "profile")

    assert ran.status == 2
    assert f"memgate profile {SCRIPT} -o TRACE, then: memgate analyze TRACE --gpu t4" in ran.err


def test_a_script_that_the_phantom_refuses_is_told_its_way(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trace of it can be analysed all the same."""

    def refuse(*_: Any) -> Any:
        raise NotModelledError("it calls cufftCreate")

    monkeypatch.setattr(local, "find_runtime", refuse)

    ran = run("estimate", SCRIPT, "--gpu", "t4")

    assert ran.status == 1
    assert "it calls cufftCreate; profile the script: memgate profile" in ran.err


@pytest.mark.parametrize(
    ("arguments", "want_message"),
    [
        (["estimate", "nowhere.json", "--gpu", "t4"], "nowhere.json: "),
        (["accuracy", "nowhere.csv"], "nowhere.csv: No such file"),
        (["profile", "nowhere.py"], "nowhere.py: there is no such script"),
        (["profile", "tests/conftest.py", "-o", "no/where.json"], "no/where.json: there is no"),
        (["estimate", "nowhere.py", "--gpu", "t4"], "nowhere.py: there is no such script"),
        (["accuracy", "nowhere.csv", "--engine", "x"], "engine is 'x': there is no such engine"),
        (
            ["estimate", SCRIPT, "--gpu", "t4", "--engine", "x"],
            "engine is 'x': there is no such engine",
        ),
    ],
)
def test_missing_files_are_named(run: Any, arguments: list[str], want_message: str) -> None:
    """Exit 2, one sentence."""
    ran = run(*arguments)

    assert ran.status == 2
    assert want_message in ran.err
