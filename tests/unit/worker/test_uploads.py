"""Uploads in a process of their own: what comes back, and what its limits stop."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memgate.errors import (
    Fault,
    InputError,
    MemgateError,
    ProcessLostError,
    SnapshotFormatError,
    TraceFormatError,
    UnsupportedTraceError,
    UploadLimitError,
)
from memgate.file_kinds import FileKind
from memgate.gpus import parse_gpu
from memgate.units import MIB
from memgate_worker.uploads import client
from memgate_worker.uploads.client import judge_upload
from memgate_worker.uploads.judging import allowed_memory_bytes, judge
from memgate_worker.uploads.question import UploadQuestion
from tests.builders import mib
from tests.conftest import DATA
from tests.gpu_traces import GpuTrace

TRACE = DATA / "traces" / "tiny-torch-2.14.json.gz"
SNAPSHOT = DATA / "snapshots" / "adam-torch-2.14.pickle.gz"
QUESTION = UploadQuestion(target=parse_gpu("rtx-3060"))


def _ask(**more: Any) -> UploadQuestion:
    return UploadQuestion(target=QUESTION.target, **more)


def _on_gpu(*parts: str, **more: Any) -> bytes:
    trace = GpuTrace()
    for number, part in enumerate(parts):
        with getattr(trace, part)():
            trace.alloc(0x1000 * (number + 1), mib(1))
    return trace.to_bytes(**more)


@pytest.mark.parametrize("path", [TRACE, SNAPSHOT], ids=["trace", "snapshot"])
def test_the_answer_is_that_of_this_process(path: Path) -> None:
    """Estimate, curve and run pass from one process to the other as they are."""
    with path.open("rb") as stream:
        page = judge_upload(stream, QUESTION)
    run = judge_upload(io.BytesIO(path.read_bytes()), _ask(wants_run=True)).run
    here = judge(io.BufferedReader(io.BytesIO(path.read_bytes())), QUESTION)
    run_here = judge(io.BufferedReader(io.BytesIO(path.read_bytes())), _ask(wants_run=True)).run

    timings: dict[str, Any] = {"timings_ms": {}}
    assert page.estimate.model_copy(update=timings) == here.estimate.model_copy(update=timings)
    assert (page.view, page.run) == (here.view, None)
    assert run is not None
    assert run_here is not None
    assert (run.timeline, run.doubts, run.peaks) == (
        run_here.timeline,
        run_here.doubts,
        run_here.peaks,
    )
    timings_ms = page.estimate.timings_ms
    assert timings_ms["trace"] + timings_ms["replay"] == timings_ms["total"]


def test_an_upload_is_read_from_where_the_stream_is() -> None:
    """Not from where its buffer ends."""
    with TRACE.open("rb") as stream:
        stream.read(1)
        stream.seek(0)

        assert judge_upload(stream, QUESTION).estimate.decision == "admit"


@pytest.mark.parametrize(
    ("upload", "more", "want"),
    [
        (b"{}", {}, TraceFormatError),
        (b"\x80\x02N.", {}, SnapshotFormatError),
        (_on_gpu("forward", hip_runtime_version=1), {}, UnsupportedTraceError),
        (TRACE.read_bytes(), {"device": 1}, InputError),
        (TRACE.read_bytes(), {"max_bytes": 1000}, TraceFormatError),
        (SNAPSHOT.read_bytes(), {"without": ("dropout_masks",)}, InputError),
        (SNAPSHOT.read_bytes(), {"inference": True}, InputError),
    ],
)
def test_an_error_keeps_its_class(
    upload: bytes, more: dict[str, Any], want: type[MemgateError]
) -> None:
    """And with it its code and whose fault it is."""
    with pytest.raises(want) as raised:
        judge_upload(io.BytesIO(upload), _ask(**more))

    assert raised.value.code == want.code


_JUDGE_AND_MEASURE = """
import json, resource, sys
from memgate.errors import InputError
from memgate.gpus import parse_gpu
from memgate_worker.uploads.client import judge_upload
from memgate_worker.uploads.question import UploadQuestion
try:
    judge_upload(sys.stdin.buffer, UploadQuestion(target=parse_gpu("t4")))
except InputError as error:
    peak_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    print(json.dumps([error.message, peak_bytes]))
"""


@pytest.mark.parametrize(
    "content",
    [b'{"traceEvents":[' + b"{}," * 19_000_000, b"\x80\x04](" + b"}" * 60_000_000],
    ids=["trace", "snapshot"],
)
def test_a_small_bomb_costs_little(content: bytes) -> None:
    """Some 60 KB that unpack to 60 MB, and would become gigabytes of objects."""
    bomb = gzip.compress(content)
    # in a process whose only child is the upload's
    command = [sys.executable, "-P", "-c", _JUDGE_AND_MEASURE]
    done = subprocess.run(command, input=bomb, capture_output=True, check=True)
    message, peak_bytes = json.loads(done.stdout)

    assert len(bomb) < 62_000
    assert "times its size" in message
    assert peak_bytes < 300_000_000


def test_an_upload_that_takes_too_much_memory_is_the_callers() -> None:
    """Empty lists take twenty times their bytes; a trace never takes more than three times."""
    bomb = b'{"traceEvents":[],"memgate":{"a":[' + b",".join([b"[]"] * 10_000_000) + b"]}}"

    with pytest.raises(UploadLimitError) as raised:
        judge_upload(io.BytesIO(bomb), QUESTION)

    assert raised.value.fault is Fault.CALLER
    assert "three times the unpacked" in raised.value.message


def test_the_memory_limit_follows_the_unpacked_size() -> None:
    """Three times a trace and 150 MB; a snapshot's document has a limit of its own."""
    assert allowed_memory_bytes(FileKind.TRACE, 209_000_000) == 777_000_000
    assert allowed_memory_bytes(FileKind.SNAPSHOT, 10 * MIB) == 120 * MIB + 150_000_000
    assert allowed_memory_bytes(FileKind.SNAPSHOT, 500 * MIB) == 2548 * MIB + 150_000_000


def test_an_upload_that_never_ends_is_given_up() -> None:
    """Five times the processor time that is allowed, on the clock."""
    reading, writing = os.pipe()
    with (
        os.fdopen(writing, "wb"),
        os.fdopen(reading, "rb") as stream,
        pytest.raises(UploadLimitError, match=r"longer than 0.1 s of processor time"),
    ):
        judge_upload(stream, _ask(max_seconds=0.1))


def test_processor_time_is_limited() -> None:
    """By the system, whatever the process does."""
    code = (
        "from memgate_worker.uploads.process import Limits\n"
        "Limits(0.5).allow_memory(1 << 30)\n"
        "while True: pass"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], check=False)

    assert done.returncode == -signal.SIGXCPU


@pytest.mark.parametrize(
    ("code", "want", "message"),
    [
        ("os.kill(os.getpid(), signal.SIGXCPU)", UploadLimitError, "longer than 120 s"),
        ("os.kill(os.getpid(), signal.SIGKILL)", UploadLimitError, r"killed .*\(SIGKILL\)"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", UploadLimitError, r"\(SIGSEGV\)"),
        ("os.kill(os.getpid(), signal.SIGTERM)", ProcessLostError, "ask again"),
        ("raise KeyError('a bug')", RuntimeError, "KeyError: 'a bug'"),
    ],
)
def test_why_a_process_died_is_told(
    monkeypatch: pytest.MonkeyPatch, code: str, want: type[Exception], message: str
) -> None:
    """An upload that kills it is the caller's; what others end may be asked again."""
    command = (sys.executable, "-P", "-c", f"import os, signal\n{code}")
    monkeypatch.setattr(client, "_COMMAND", command)

    with pytest.raises(want, match=message):
        judge_upload(io.BytesIO(b"{}"), QUESTION)


def test_a_process_ends_when_nobody_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As when the job is canceled."""
    started: list[subprocess.Popen[bytes]] = []

    def interrupt(process: subprocess.Popen[bytes], **_: object) -> None:
        started.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess.Popen, "communicate", interrupt)
    with pytest.raises(KeyboardInterrupt):
        judge_upload(io.BytesIO(b"{}"), QUESTION)

    assert started[0].returncode is not None


def _forward_on_cpu() -> bytes:
    """Cut a real trace off where its first backward pass begins."""
    document = json.loads(gzip.decompress(TRACE.read_bytes()))
    events = document["traceEvents"]
    end = min(event["ts"] for event in events if event["name"].startswith("autograd::engine"))
    document["traceEvents"] = [event for event in events if event.get("ts", 0) < end]
    return json.dumps(document).encode()


@pytest.mark.parametrize("make", [_forward_on_cpu, lambda: _on_gpu("forward")], ids=["cpu", "gpu"])
def test_a_forward_pass_alone_is_admitted_only_as_inference(make: Callable[[], bytes]) -> None:
    """The question is about training unless the caller says otherwise; the reason stays."""
    answers = [
        judge_upload(io.BytesIO(make()), _ask(inference=inference)).estimate
        for inference in (False, True)
    ]

    assert [answer.decision for answer in answers] == ["uncertain", "admit"]
    assert answers[0].reasons[0].code == "INFERENCE_ONLY"
    assert [one.code for one in answers[1].reasons].count("INFERENCE_ONLY") == 1
    assert answers[0].needs_bytes == answers[1].needs_bytes


def test_a_backward_pass_without_a_step_is_never_admitted() -> None:
    """It is training, whatever the caller says."""
    said = judge_upload(io.BytesIO(_on_gpu("forward", "backward")), _ask(inference=True)).estimate

    assert (said.decision, said.reasons[0].code) == ("uncertain", "NO_OPTIMIZER_STEP")
