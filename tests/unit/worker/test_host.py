"""Our end of a host: what it makes of one that dies, or hangs."""

from __future__ import annotations

from pathlib import Path

import pytest

from memgate.errors import InputError, JobFailedError, ProcessLostError
from memgate_worker.engines import client
from memgate_worker.engines.client import Host, HostLostError
from memgate_worker.engines.messages import JobRun, Profiled, Request
from memgate_worker.runtimes.runtime import Runtime

_REQUEST = Request(work=JobRun(spec="{}"), environment={}, timeout_seconds=0.1, host_memory_bytes=1)


def _host(tmp_path: Path, script: str) -> Host:
    """Start a host that is a shell script."""
    runtime = Runtime(
        name="fake", description="", bare=(), full=(), headers=(), cudnn=None, home=tmp_path
    )
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
    answer = '{"type":"profiled","num_parameters":3,"versions":{}}'
    progress = '{"type":"progress","num_steps":1}'

    said = _ask(_host(tmp_path, f"echo '{progress}'; echo '{answer}'"))

    assert said == Profiled(num_parameters=3, versions={})


@pytest.mark.parametrize(
    "script",
    ["echo 'out of luck' >&2", "printf '{\"type\":\"profiled\",'; echo 'out of luck' >&2"],
    ids=["nothing", "half an answer"],
)
def test_a_host_that_died_is_lost(tmp_path: Path, script: str) -> None:
    """Another try may do; what it said last is told."""
    with pytest.raises(HostLostError, match="died: out of luck"):
        _ask(_host(tmp_path, script))


def test_a_host_that_hangs_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It should have ended the job itself."""
    monkeypatch.setattr(client, "_SLACK_SECONDS", 0.1)

    with pytest.raises(HostLostError):
        _ask(_host(tmp_path, "exec sleep 1000"))


@pytest.mark.parametrize(
    ("answer", "want"),
    [
        ('{"type":"crash","message":"x","was_killed":true}', ProcessLostError),
        ('{"type":"crash","message":"x"}', JobFailedError),
        ('{"type":"bad_job","message":"x"}', InputError),
    ],
    ids=["killed", "failed", "wrong"],
)
def test_what_became_of_a_job_is_told_apart(
    tmp_path: Path, answer: str, want: type[Exception]
) -> None:
    """Lost, failed, or the caller's own fault; the host lives on."""
    with pytest.raises(want) as raised:
        _ask(_host(tmp_path, f"echo '{answer}'"))

    assert type(raised.value) is want
