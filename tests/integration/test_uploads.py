"""Uploads in a process of their own: what comes back, and what its limits stop."""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import signal
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memgate.errors import (
    AllocatorConfigError,
    Fault,
    InputError,
    MemgateError,
    NoKernelsError,
    ProcessLostError,
    SandboxError,
    SnapshotFormatError,
    TimelineFileError,
    TraceFormatError,
    UnsupportedTraceError,
    UploadLimitError,
)
from memgate.file_kinds import FileKind
from memgate.gpus import parse_gpu
from memgate.timeline import Alloc, Free, Timeline
from memgate.timeline_file.document import MAGIC
from memgate.timeline_file.reading import read_timeline
from memgate.timeline_file.writing import write_timeline
from memgate.units import MIB
from memgate_worker.sandbox.level import Level
from memgate_worker.sandbox.policy import SandboxPolicy, choose
from memgate_worker.uploads import client
from memgate_worker.uploads.client import fit_upload, judge_upload
from memgate_worker.uploads.host import UploadHost
from memgate_worker.uploads.judging import allowed_memory_bytes, judge
from memgate_worker.uploads.question import UploadFitQuestion, UploadQuestion
from tests.bench.timeline_files import repeat_last_step
from tests.builders import mib
from tests.conftest import DATA
from tests.gpu_traces import GpuTrace
from tests.timeline_files import make_plain, pack_body

TRACE = DATA / "traces" / "tiny-torch-2.14.json.gz"
TIMELINE = DATA / "timelines" / "resnet18-format-1.0.memgate"
SNAPSHOT = DATA / "snapshots" / "adam-torch-2.14.pickle.gz"
QUESTION = UploadQuestion(target=parse_gpu("rtx-3060"))


def _ask(**more: Any) -> UploadQuestion:
    return UploadQuestion(**({"target": QUESTION.target} | more))


def _on_gpu(*parts: str, **more: Any) -> bytes:
    trace = GpuTrace()
    for number, part in enumerate(parts):
        with getattr(trace, part)():
            trace.alloc(0x1000 * (number + 1), mib(1))
    return trace.to_bytes(**more)


@pytest.mark.parametrize("path", [TRACE, SNAPSHOT, TIMELINE], ids=["trace", "snapshot", "timeline"])
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
        (TIMELINE.read_bytes(), {"inference": True}, InputError),
        (TIMELINE.read_bytes(), {"without": ("dropout_masks",)}, InputError),
        (TIMELINE.read_bytes(), {"device": 0}, InputError),
        (TIMELINE.read_bytes(), {"max_bytes": 1000}, TimelineFileError),
        (TIMELINE.read_bytes()[:-1], {}, TimelineFileError),
        (TIMELINE.read_bytes(), {"alloc_conf": "magic:1"}, AllocatorConfigError),
        (TIMELINE.read_bytes(), {"target": parse_gpu("v100-32")}, NoKernelsError),
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
    "bomb",
    [
        gzip.compress(b'{"traceEvents":[' + b"{}," * 19_000_000),
        gzip.compress(b"\x80\x04](" + b"}" * 60_000_000),
        MAGIC + b"\x01\x00" + zlib.compress(bytes(80_000_000), 9),
        gzip.compress(MAGIC + b"\x01\x00" + bytes(60_000_000)),
        pack_body(b"\x81\xa7command\xdd" + (60_000_000).to_bytes(4, "big") + bytes(60_000_000)),
    ],
    ids=["trace", "snapshot", "timeline", "packed timeline", "list of a timeline"],
)
def test_a_small_bomb_costs_little(bomb: bytes) -> None:
    """Some 60 KB that unpack to 60 MB, and would become gigabytes of objects."""
    # in a process whose only child is the upload's
    command = [sys.executable, "-P", "-c", _JUDGE_AND_MEASURE]
    done = subprocess.run(command, input=bomb, capture_output=True, check=True)
    message, peak_bytes = json.loads(done.stdout)

    assert len(bomb) < 80_000
    assert re.search("times its size|MiB unpacked|Expected `array` of length <= 1000", message)
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
    assert allowed_memory_bytes(FileKind.TIMELINE, MIB) == 30 * MIB + 150_000_000
    assert allowed_memory_bytes(FileKind.TIMELINE, 1 << 50) == 30 * 64 * MIB + 150_000_000
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


def test_a_timeline_is_answered_for_every_gpu() -> None:
    """Plainly for those of its kind; GPUs that its PyTorch was not built for are unknown."""
    with TIMELINE.open("rb") as stream:
        fit = fit_upload(stream, UploadFitQuestion())

    found = {entry.gpu: (entry.decision, entry.reason.code) for entry in fit.gpus}
    assert fit.smallest == "rtx-3060"
    assert found["rtx-3060"] == ("admit", "FITS")
    assert found["a100-80"] == ("uncertain", "RECORDED_FOR_ANOTHER_GPU")
    assert found["v100-32"] == ("unknown", "NO_KERNELS")
    sizes = [entry.capacity_bytes for entry in fit.gpus]
    assert sizes == sorted(sizes)


def test_a_timeline_may_fit_nowhere() -> None:
    """Then there is no smallest GPU."""
    events = (Alloc(0, 1 << 40), Free(0))
    file = write_timeline(make_plain(timeline=Timeline(events=events)))

    fit = fit_upload(io.BytesIO(file), UploadFitQuestion(alloc_conf="expandable_segments:True"))

    assert fit.smallest is None
    assert {entry.decision for entry in fit.gpus} <= {"reject", "unknown"}


def test_only_a_timeline_is_answered_for_every_gpu() -> None:
    """A trace is another one on each."""
    with TRACE.open("rb") as stream, pytest.raises(InputError, match="profiler trace GPU by GPU"):
        fit_upload(stream, UploadFitQuestion())


@pytest.mark.parametrize("num_events", [5_000, 50_000])
def test_memory_suffices_for_timelines_of_any_length(num_events: int) -> None:
    """With labels, a picture, and the run on its way back."""
    recorded = repeat_last_step(read_timeline(TIMELINE.read_bytes()), num_events)

    judged = judge_upload(io.BytesIO(write_timeline(recorded)), _ask(wants_run=True))

    assert judged.run is not None
    assert judged.run.timeline.events == recorded.timeline.events


def test_a_host_answers_one_upload_after_the_other() -> None:
    """Each in a child of its own, as a process that is started for it would."""
    host = UploadHost()
    try:
        for path in (TIMELINE, TRACE, SNAPSHOT):
            with path.open("rb") as stream:
                alone = judge_upload(stream, QUESTION)
            with path.open("rb") as stream:
                kept = judge_upload(stream, QUESTION, host)
            timings: dict[str, Any] = {"timings_ms": {}}
            assert kept.estimate.model_copy(update=timings) == alone.estimate.model_copy(
                update=timings
            )
            assert kept.view == alone.view
        with TIMELINE.open("rb") as stream:
            assert fit_upload(stream, UploadFitQuestion(), host).smallest == "rtx-3060"
    finally:
        host.stop()


@pytest.mark.parametrize("level", [*Level])
def test_a_host_reads_uploads_in_a_sandbox(level: Level) -> None:
    """GIVEN each level that works here WHEN all kinds are read THEN the answers are the same."""
    try:
        policy = SandboxPolicy(use=level)
        choose(policy)
    except SandboxError as error:
        pytest.skip(error.message)
    host = UploadHost(policy)
    try:
        for path in (TIMELINE, TRACE, SNAPSHOT):
            with path.open("rb") as stream:
                alone = judge_upload(stream, QUESTION)
            with path.open("rb") as stream:
                kept = judge_upload(stream, QUESTION, host)
            assert kept.estimate.needs_bytes == alone.estimate.needs_bytes
    finally:
        host.stop()


def test_an_upload_that_kills_its_child_does_not_end_the_host() -> None:
    """It is refused as ever, and the next one is answered by the same process."""
    bomb = b'{"traceEvents":[],"memgate":{"a":[' + b",".join([b"[]"] * 10_000_000) + b"]}}"
    host = UploadHost()
    try:
        with pytest.raises(UploadLimitError, match="three times the unpacked"):
            judge_upload(io.BytesIO(bomb), QUESTION, host)
        first = host.pid
        with TIMELINE.open("rb") as stream:
            assert judge_upload(stream, QUESTION, host).estimate.decision == "admit"
        assert (first, first is None) == (host.pid, False)
    finally:
        host.stop()


def test_a_host_that_is_lost_is_started_again() -> None:
    """Whoever asked may ask again, and so may one whose upload took too long."""
    host = UploadHost()
    reading, writing = os.pipe()
    try:
        with (
            os.fdopen(writing, "wb"),
            os.fdopen(reading, "rb") as stream,
            pytest.raises(UploadLimitError, match=r"longer than 0.1 s of processor time"),
        ):
            judge_upload(stream, _ask(max_seconds=0.1), host)
        pids = [host.pid]
        with TIMELINE.open("rb") as stream:
            judge_upload(stream, QUESTION, host)
        pids.append(host.pid)
        assert pids == [None, host.pid]
        os.kill(host.pid or 0, signal.SIGKILL)
        with TIMELINE.open("rb") as stream, pytest.raises(ProcessLostError, match="ask again"):
            judge_upload(stream, QUESTION, host)
        with TIMELINE.open("rb") as stream:
            assert judge_upload(stream, QUESTION, host).estimate.decision == "admit"
    finally:
        host.stop()
