"""Our end of a host: what it makes of one that dies, or hangs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from memgate import errors
from memgate.errors import (
    Fault,
    MemgateError,
    OperatorError,
    ProcessLostError,
    RuntimeBrokenError,
)
from memgate.mistakes import Mistake
from memgate_worker.engines import host_client
from memgate_worker.engines.host_client import Host
from memgate_worker.engines.messages import Failed, JobRun, Profiled, Request
from memgate_worker.limits import RunLimits
from memgate_worker.runtimes.runtime import Runtime

_REQUEST = Request(
    work=JobRun(spec="{}"), environment={}, limits=RunLimits(seconds=0.1, memory_bytes=1)
)
_PROFILED = '{"type":"profiled","num_parameters":3,"versions":{}}'

#: every class that a run can end with
KINDS = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, MemgateError) and kind is not MemgateError
]


def _runtime(tmp_path: Path) -> Runtime:
    return Runtime(name="fake", description="", bare=(), full=(), cudnn=None, home=tmp_path)


def _host(tmp_path: Path, script: str) -> Host:
    """Start a host that is a shell script."""
    runtime = _runtime(tmp_path)
    runtime.python.parent.mkdir(parents=True)
    runtime.python.write_text(f"#!/bin/sh\nread request\n{script}\n")
    runtime.python.chmod(0o755)
    return Host(runtime)


def _ask(host: Host) -> object:
    try:
        return host.ask(_REQUEST)
    finally:
        host.close()


def test_an_answer_is_a_line(tmp_path: Path) -> None:
    """Lines of progress may come before it."""
    progress = '{"type":"progress","num_steps":1}'

    said = _ask(_host(tmp_path, f"echo '{progress}'; echo '{_PROFILED}'"))

    assert said == Profiled(num_parameters=3, versions={})


@pytest.mark.parametrize(
    "script",
    [
        "echo 'out of luck' >&2; exit 1",
        "printf '{\"type\":\"profiled\",'; echo 'out of luck' >&2",
        "echo 'out of luck' >&2; kill -SEGV $$",
    ],
    ids=["nothing", "half an answer", "a fault in native code"],
)
def test_a_host_that_never_answers_is_the_operators(tmp_path: Path, script: str) -> None:
    """The runtime does not start: what it said last, and the command that installs it again."""
    want = r"does not start: out of luck; install it again with: memgate runtimes install fake$"
    with pytest.raises(RuntimeBrokenError, match=want):
        _ask(_host(tmp_path, script))


def test_a_runtime_without_an_interpreter_is_the_operators(tmp_path: Path) -> None:
    """There is nothing to start."""
    runtime = replace(_runtime(tmp_path), home=tmp_path / "gone")

    with pytest.raises(RuntimeBrokenError, match=r"No such file .* memgate runtimes install fake$"):
        Host(runtime)


def test_a_host_that_was_killed_is_lost(tmp_path: Path) -> None:
    """That says nothing about the runtime: another try may do."""
    with pytest.raises(ProcessLostError, match="died: out of luck; ask again"):
        _ask(_host(tmp_path, "echo 'out of luck' >&2; kill -KILL $$"))


def test_a_host_that_was_lost_is_started_again(tmp_path: Path) -> None:
    """By the next question; one that has answered before does not make its runtime broken."""
    host = _host(tmp_path, f"echo '{_PROFILED}'; read request; exit 1")
    try:
        first = host.ask(_REQUEST)
        with pytest.raises(ProcessLostError):
            host.ask(_REQUEST)
        third = host.ask(_REQUEST)
    finally:
        host.close()

    assert first == third == Profiled(num_parameters=3, versions={})


def test_a_host_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It should have ended the job itself."""
    monkeypatch.setattr(host_client, "_SLACK_SECONDS", 0.1)

    with pytest.raises(ProcessLostError):
        _ask(_host(tmp_path, "exec sleep 1000"))


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_an_error_crosses_as_what_it_is(tmp_path: Path, kind: type[MemgateError]) -> None:
    """Its class, code, message, fault and mistakes; the client has no branch for any of them."""
    mistake = Mistake(field="model.name", value="resnet5O", rule="there is no such model")
    said = msgspec.json.encode(Failed.of(kind("x", (mistake,)))).decode()

    with pytest.raises(kind) as raised:
        _ask(_host(tmp_path, f"echo '{said}'"))

    assert type(raised.value) is kind
    assert (raised.value.message, raised.value.fault) == ("x", kind.fault)
    assert raised.value.mistakes == (mistake,)


def test_an_error_of_another_version_keeps_its_code_and_fault(tmp_path: Path) -> None:
    """Doors decide by the fault, which there is always a class for."""
    said = '{"type":"failed","code":"OF_LATER","message":"x","fault":"operator"}'

    with pytest.raises(OperatorError) as raised:
        _ask(_host(tmp_path, f"echo '{said}'"))

    assert (raised.value.code, raised.value.fault) == ("OF_LATER", Fault.OPERATOR)
