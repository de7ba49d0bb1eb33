"""``memgate analyze``: traces from files, for people and for programs."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.builders import mib
from tests.conftest import DATA
from tests.gpu_traces import GpuTrace

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


@pytest.mark.parametrize("name", ["curve.csv", "curve.json", "curve.CSV"])
def test_the_curve_is_written_as_data(run: Any, tmp_path: Path, name: str) -> None:
    """Its peaks are those of the answer; CSV and JSON hold the same columns."""
    path = tmp_path / name

    answer = json.loads(run("analyze", TRACE, "--gpu", "t4", "--curve", path, "--json").out)

    if path.suffix == ".json":
        columns = json.loads(path.read_text())
    else:
        header, *rows = csv.reader(path.read_text().splitlines())
        columns = dict(zip(header, zip(*rows, strict=True), strict=True))
    assert list(columns)[:4] == ["event", "phase", "reserved_bytes", "allocated_bytes"]
    assert max(map(int, columns["reserved_bytes"])) == answer["peak_reserved_bytes"]
    assert max(map(int, columns["allocated_bytes"])) == answer["peak_allocated_bytes"]
    held = [name for name in columns if name.endswith("_bytes")][2:]
    last = sum(int(columns[name][-1]) for name in held)
    assert last == int(columns["allocated_bytes"][-1])


def test_the_curve_of_a_job_that_does_not_fit_is_whole(run: Any, tmp_path: Path) -> None:
    """As on a GPU that has enough, like the picture."""
    trace = GpuTrace()
    for _ in range(2):
        trace.iteration(activations=mib(20_000), gradients=mib(10))
    path, data = tmp_path / "curve.json", tmp_path / "large.json"
    data.write_bytes(trace.to_bytes())

    ran = run("analyze", data, "--gpu", "t4", "--curve", path, "--json")

    peak = json.loads(ran.out)["peak_reserved_bytes"]
    assert ran.status == 3
    assert max(json.loads(path.read_text())["reserved_bytes"]) == peak


@pytest.mark.parametrize(
    ("name", "want_message"),
    [
        ("curve.txt", "the name must end in .csv or .json"),
        ("no/curve.csv", "there is no such folder"),
        ("there.csv", "the file exists; remove it, or give another name"),
    ],
)
def test_a_curve_that_cannot_be_written_is_refused_first(
    run: Any, tmp_path: Path, name: str, want_message: str
) -> None:
    """A file that is there is never overwritten."""
    (tmp_path / "there.csv").write_text("mine")

    ran = run("analyze", TRACE, "--gpu", "t4", "--curve", tmp_path / name)

    assert (ran.status, want_message in ran.err) == (2, True)
    assert (tmp_path / "there.csv").read_text() == "mine"


def test_a_forward_pass_is_admitted_with_inference(run: Any, tmp_path: Path) -> None:
    """Otherwise the question is about training, and the trace does not answer it."""
    trace = GpuTrace()
    with trace.forward():
        trace.alloc(0x1000, mib(1))
    path = tmp_path / "forward.json"
    path.write_bytes(trace.to_bytes())

    plain = run("analyze", path, "--gpu", "t4")
    asked = run("analyze", path, "--gpu", "t4", "--inference")

    assert (plain.status, asked.status) == (4, 0)
    assert "profile whole training steps, or ask about inference" in " ".join(plain.out.split())
    assert "the figures are those of inference" in " ".join(asked.out.split())


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
    assert "TRACE_UNEXPLAINED" in [one["code"] for one in answer["reasons"]]
    assert (ran.status, "not explained: " in ran.out) == (4, True)


def test_a_trace_without_stacks_is_answered(run: Any, tmp_path: Path) -> None:
    """The same number; a note says what the flag costs."""
    document = json.loads(gzip.decompress(TRACE.read_bytes()))
    document["traceEvents"] = [
        event for event in document["traceEvents"] if event.get("cat") != "python_function"
    ]
    path = tmp_path / "flat.json"
    path.write_text(json.dumps(document))

    full = json.loads(run("analyze", TRACE, "--gpu", "t4", "--json").out)
    ran = run("analyze", path, "--gpu", "t4", "--json")

    answer = json.loads(ran.out)
    assert (ran.status, answer["peak_bytes"]) == (0, full["peak_bytes"])
    (note,) = (one for one in answer["reasons"] if one["code"] == "TRACE_FLAGS_MISSING")
    assert "recorded without with_stack=True (what belongs to" in note["message"]


def test_a_trace_of_a_gpu_is_a_measurement(run: Any, tmp_path: Path) -> None:
    """Its own peak, the GPU that it was on, its layers; rules are for other traces."""
    trace = GpuTrace(before_bytes=mib(300), reserved_bytes=mib(900))
    for _ in range(2):
        trace.iteration(activations=mib(100), gradients=mib(50))
    path = tmp_path / "gpu.json"
    path.write_bytes(trace.to_bytes())

    ran = run("analyze", path, "--gpu", "t4")
    answer = json.loads(run("analyze", path, "--gpu", "t4", "--json").out)
    refused = run("analyze", path, "--gpu", "t4", "--without", "dropout_masks")

    assert (ran.status, answer["decision"], answer["engine"]) == (0, "admit", "measured")
    assert answer["peak_reserved_bytes"] == mib(900)
    assert answer["reasons"][-1]["code"] == "MEASURED_PEAK"
    assert "Tesla V100-SXM2-32GB" in ran.out
    assert "Linear_0  150.00 MiB" in ran.out
    assert refused.status == 2
    assert "rules (dropout_masks) are for traces of a CPU" in refused.err


@pytest.mark.parametrize(
    ("text", "options", "want_message"),
    [
        ("{}", [], "missing required field `traceEvents`"),
        (
            "{}",
            ["--without", "magic"],
            "rule is 'magic': there is no such rule; there are: attention",
        ),
        ("[[-1, 1, 512, 7]]", [], "this is a file of export_memory_timeline()"),
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


SNAPSHOTS = DATA / "snapshots"


def test_a_memory_snapshot_is_replayed(run: Any, tmp_path: Path) -> None:
    """Recognised by its content, whatever it is called; with a picture and without layers."""
    plain = tmp_path / "what.json"
    plain.write_bytes(gzip.decompress((SNAPSHOTS / "adam-torch-2.14.pickle.gz").read_bytes()))
    picture = tmp_path / "snapshot.png"

    ran = run("analyze", plain, "--gpu", "rtx-3060", "--plot", picture, "--json", "--device", "0")
    seen = run("analyze", SNAPSHOTS / "adam-torch-2.14.pickle.gz", "--gpu", "rtx-3060")

    answer = json.loads(ran.out)
    assert (ran.status, answer["decision"], answer["engine"]) == (0, "admit", "snapshot")
    assert answer["peak_reserved_bytes"] == 85983232
    assert sum(answer["breakdown"].values()) == answer["peak_bytes"]
    assert answer["reasons"][-1]["code"] == "SNAPSHOT_PEAK"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "by layer" not in seen.out


def test_a_snapshot_that_ended_in_out_of_memory_is_admitted_nowhere(run: Any) -> None:
    """Rejected where it does not fit, uncertain on every larger GPU; no GPU is advised."""
    small = run("analyze", SNAPSHOTS / "oom-torch-2.6.pickle.gz", "--gpu", "rtx-4060", "--json")
    large = run("analyze", SNAPSHOTS / "oom-torch-2.6.pickle.gz", "--gpu", "h200", "--json")
    told = run("analyze", SNAPSHOTS / "oom-torch-2.6.pickle.gz", "--gpu", "h200")

    assert (small.status, large.status) == (3, 4)
    first = json.loads(large.out)["reasons"][0]
    assert first["code"] == "ENDED_IN_OOM"
    assert "asked for 1024.00 MiB" in first["message"]
    assert (json.loads(small.out)["fits_on"], json.loads(large.out)["fits_on"]) == ([], [])
    assert "fits on: " not in told.out


@pytest.mark.parametrize(
    ("name", "options", "want_message"),
    [
        ("snapshots/adam-torch-2.14.pickle.gz", ["--device", "3"], "device 3 is not in the snap"),
        (
            "snapshots/adam-torch-2.14.pickle.gz",
            ["--without", "cublas_workspaces"],
            "a snapshot needs",
        ),
        ("traces/tiny-torch-2.14.json.gz", ["--device", "0"], "a trace of a CPU has none"),
    ],
)
def test_options_that_mean_nothing_for_a_file_are_refused(
    run: Any, name: str, options: list[str], want_message: str
) -> None:
    """Rather than left out in silence."""
    ran = run("analyze", DATA / name, "--gpu", "t4", *options)

    assert (ran.status, want_message in ran.err) == (2, True)


def test_an_unsafe_pickle_is_refused_by_the_opcode(run: Any, tmp_path: Path) -> None:
    """Exit 2, and nothing of it is run."""
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(b"\x80\x04\x8c\x02os\x8c\x06system\x93.")

    ran = run("analyze", path, "--gpu", "t4")

    assert (ran.status, "opcode STACK_GLOBAL" in ran.err) == (2, True)


def test_a_snapshot_is_not_a_job_spec(run: Any) -> None:
    """The other command is named."""
    ran = run("estimate", SNAPSHOTS / "adam-torch-2.14.pickle.gz", "--gpu", "t4")

    assert (ran.status, "this is a memory snapshot: memgate analyze" in ran.err) == (2, True)


def test_a_pipe_is_refused_and_standard_input_read(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe by its name would wait for a writer without end."""
    path = tmp_path / "pipe"
    os.mkfifo(path)

    refused = run("analyze", path, "--gpu", "t4")
    with TRACE.open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        read = run("analyze", "-", "--gpu", "t4")

    assert (refused.status, read.status) == (2, 0)
    assert "this is a named pipe, not a file; give the path of a file, or pipe it" in refused.err


def test_a_terminal_is_not_waited_for(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody types a trace."""
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)

    ran = run("analyze", "-", "--gpu", "t4")

    assert (ran.status, "memgate analyze - --gpu GPU < FILE" in ran.err) == (2, True)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux has such files")
def test_a_file_that_cannot_be_read_is_the_callers(run: Any) -> None:
    """The kernel says that it is a file, and does not let it be read."""
    ran = run("analyze", "/proc/self/mem", "--gpu", "t4")

    assert (ran.status, "it cannot be read: Input/output error" in ran.err) == (2, True)
