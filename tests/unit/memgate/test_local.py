"""``memgate.estimate``, as far as it gets without running a job."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

import pytest

import memgate
from memgate import estimate
from memgate.errors import (
    AllocatorConfigError,
    Fault,
    InputError,
    MissingExtraError,
    RuntimeMissingError,
    TraceFormatError,
    UnknownGpuError,
)
from memgate.jobspec import parse_job_spec
from memgate.local import close_engines
from tests.conftest import DATA

JOB = {
    "model": {"source": "torchvision", "name": "vgg16"},
    "input": {"shape": [3, 8, 8]},
    "batch_size": 1,
}
TRACE = DATA / "traces/tiny-torch-2.14.json.gz"
SNAPSHOT = DATA / "snapshots/oom-torch-2.6.pickle.gz"


@pytest.fixture(autouse=True)
def _no_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no job run: what must be said before that is said."""
    monkeypatch.setenv("MEMGATE_RUNTIMES_DIR", str(tmp_path / "runtimes"))


@pytest.mark.parametrize("is_packed", [True, False], ids=["gzip", "plain"])
def test_a_trace_is_answered_without_a_runtime(tmp_path: Path, is_packed: bool) -> None:
    """Whatever the file is called."""
    path = tmp_path / "whatever"
    path.write_bytes(TRACE.read_bytes() if is_packed else gzip.decompress(TRACE.read_bytes()))

    said = estimate(str(path), "rtx-3060", allocator="expandable_segments:True")

    assert (said.decision, said.engine) == ("admit", "profile")
    assert set(said.timings_ms) == {"run", "trace", "replay", "total"}


def test_a_memory_snapshot_is_answered_without_a_runtime() -> None:
    """With the doubts that it comes with."""
    said = estimate(SNAPSHOT, "h200", device=0)

    assert (said.decision, said.engine) == ("uncertain", "snapshot")
    assert said.reasons[0].code == "ENDED_IN_OOM"


@pytest.mark.parametrize("form", ["spec", "dict", "path", "text path"])
def test_a_job_may_be_a_spec_a_dict_or_a_file(tmp_path: Path, form: str) -> None:
    """All of them get as far as the missing runtime, which the operator can install."""
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(JOB))
    forms = {"spec": parse_job_spec(JOB), "dict": JOB, "path": path, "text path": str(path)}

    with pytest.raises(RuntimeMissingError, match="is not installed; install it with: ") as raised:
        estimate(forms[form], "rtx-3060", allocator="expandable_segments:True")  # type: ignore[arg-type]

    assert raised.value.fault is Fault.OPERATOR


@pytest.mark.parametrize(
    ("arguments", "options", "error", "message"),
    [
        ((JOB, "t4"), {"engine": "magic"}, InputError, "engine is 'magic'"),
        ((JOB, "gtx"), {}, UnknownGpuError, "gpu is 'gtx'"),
        ((JOB, "t4"), {"runtime": "x"}, InputError, "runtime is 'x'"),
        ((JOB, "t4"), {"allocator": "x:1"}, AllocatorConfigError, "allocator setting"),
        ((JOB, "t4"), {"timeout_seconds": 0}, InputError, "timeout_seconds is 0: give a number"),
        ((JOB, "t4"), {"host_memory_bytes": -1}, InputError, "host_memory_bytes is -1: give"),
        ((JOB | {"batch_size": 0}, "t4"), {}, InputError, "batch_size is 0"),
        ((7, "t4"), {}, InputError, "job is of type int: give a JobSpec, a dict, or the path"),
        ((json.dumps(JOB), "t4"), {}, InputError, "job is text, not a path: give a JobSpec"),
        (("no/where.yaml", "t4"), {}, InputError, "no/where.yaml: No such file"),
        (("train.py", "t4"), {}, InputError, "memgate estimate train.py --gpu GPU"),
        ((TRACE, "t4"), {"engine": "phantom"}, InputError, "is a profiler trace: leave out engine"),
        ((SNAPSHOT, "t4"), {"runtime": "x"}, InputError, "is a memory snapshot: leave out engine"),
        ((SNAPSHOT, "t4"), {"device": 4}, InputError, "device 4 is not in the snapshot"),
        ((JOB, "t4"), {"inference": True}, InputError, "inference is for traces; a job spec"),
        ((SNAPSHOT, "t4"), {"inference": True}, InputError, "inference is for traces; a snap"),
        ((TRACE, "t4"), {"device": 0}, InputError, "device is 0: a trace of a CPU has none"),
        ((JOB, "t4"), {"device": 0}, InputError, "device is 0: only memory snapshots and traces"),
        ((TRACE, "t4"), {"runtime": "torch-2.6"}, InputError, "leave out engine and runtime"),
    ],
)
def test_a_mistake_is_named(
    arguments: Any, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    """Before anything is run, and the engine before a missing runtime."""
    with pytest.raises(error, match=message.replace("(", r"\(")):
        estimate(*arguments, **options)


@pytest.mark.parametrize(
    ("content", "error"), [(b"{", InputError), (b'{"traceEvents": 1}', TraceFormatError)]
)
def test_a_mistake_in_a_file_names_the_file(
    tmp_path: Path, content: bytes, error: type[InputError]
) -> None:
    """And keeps its code."""
    path = tmp_path / "file"
    path.write_bytes(content)

    with pytest.raises(error, match=str(path)) as raised:
        estimate(path, "t4")

    assert type(raised.value).code == error.code


def test_a_package_that_is_not_installed_is_the_operators(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    for module in ("memgate_worker.local", "memgate_worker.runtimes.runtime"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.delattr("memgate_worker.local", raising=False)
    monkeypatch.setitem(sys.modules, "platformdirs", None)

    with pytest.raises(MissingExtraError, match=r"pip install 'memgate\[worker\]'") as raised:
        estimate(JOB, "t4")

    assert raised.value.fault is Fault.OPERATOR
    assert raised.value.message.startswith("memgate.estimate needs platformdirs: ")


def test_a_missing_part_of_memgate_is_not_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """No command would install it: it is a bug, and stays one."""
    monkeypatch.delattr("memgate_worker.local", raising=False)
    monkeypatch.setitem(sys.modules, "memgate_worker.local", None)

    with pytest.raises(ModuleNotFoundError):
        estimate(JOB, "t4")


def test_a_name_of_the_surface_may_need_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """``from memgate import Client`` says which."""
    monkeypatch.delitem(sys.modules, "memgate.client.clients", raising=False)
    monkeypatch.setitem(sys.modules, "httpx2", None)

    with pytest.raises(MissingExtraError, match=r"memgate\.Client needs httpx2: pip install"):
        memgate.__getattr__("Client")


def test_engines_can_be_closed_before_the_process_ends() -> None:
    """Also when there are none."""
    close_engines()
