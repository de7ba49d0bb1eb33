"""``memgate analyze``: traces from files, for people and for programs."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import DATA

TRACE = DATA / "traces" / "tiny-torch-2.14.json.gz"


def test_a_trace_is_judged_without_running_anything(run: Any, tmp_path: Path) -> None:
    """The answer of every door, the tree of layers, a picture."""
    picture = tmp_path / "trace.png"

    ran = run("analyze", TRACE, "--gpu", "rtx-3060", "--plot", picture, "--json")

    answer = json.loads(ran.out)
    assert (ran.status, answer["decision"], answer["engine"]) == (0, "admit", "profile")
    assert sum(answer["breakdown"].values()) == answer["peak_bytes"]
    assert answer["layers"]["children"][0]["name"] == "Tiny_0"
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_person_sees_the_layers(run: Any) -> None:
    """The largest first, the smallest left out."""
    ran = run("analyze", TRACE, "--gpu", "t4", "--allocator", "expandable_segments:True")

    assert "by layer" in ran.out
    assert "not explained" not in ran.out
    assert "Linear_1" in ran.out
    assert "LayerNorm_0" not in ran.out


def test_a_rule_may_be_left_out(run: Any) -> None:
    """To see what it does."""
    arguments = ("analyze", TRACE, "--gpu", "t4", "--json")

    ours = json.loads(run(*arguments).out)
    without = json.loads(run(*arguments, "--without", "cublas_workspaces").out)

    assert without["peak_allocated_bytes"] < ours["peak_allocated_bytes"]


def test_what_could_not_be_explained_is_told(run: Any, tmp_path: Path) -> None:
    """A trace whose frees were lost: counts for programs, a line for people, nothing admitted."""
    document = json.loads(gzip.decompress(TRACE.read_bytes()))
    document["traceEvents"] = [
        event
        for event in document["traceEvents"]
        if event.get("name") != "[memory]" or event["args"]["Bytes"] > 0
    ]
    path = tmp_path / "blind.json"
    path.write_text(json.dumps(document))

    answer = json.loads(run("analyze", path, "--gpu", "t4", "--json").out)
    ran = run("analyze", path, "--gpu", "t4")

    assert answer["diagnostics"]["free_not_seen"] > 0
    assert answer["diagnostics"]["no_forward"] == 0
    assert answer["reasons"][0]["code"] == "TRACE_UNEXPLAINED"
    assert (ran.status, "not explained: " in ran.out) == (4, True)


@pytest.mark.parametrize(
    ("text", "options", "want_message"),
    [
        ("{}", [], "missing required field `traceEvents`"),
        (
            "{}",
            ["--without", "magic"],
            "rule is 'magic': there is no such rule; there are: attention",
        ),
        (None, [], "No such file or directory"),
    ],
)
def test_what_is_no_trace_is_a_sentence(
    run: Any, tmp_path: Path, text: str | None, options: list[str], want_message: str
) -> None:
    """The file, and what is wrong with it; exit 2."""
    path = tmp_path / "trace.json"
    if text is not None:
        path.write_text(text)

    ran = run("analyze", path, "--gpu", "t4", *options)

    assert ran.status == 2
    assert want_message in ran.err
