"""A job that nobody waits for is ended, and the next one finds the engine warm."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from memgate.gpus import CATALOGUE
from memgate.jobspec import parse_job_spec
from memgate_worker.engines.lines import Lines
from memgate_worker.engines.registry import Engine, start_engine
from memgate_worker.runtimes.runtime import find_runtime
from tests.running import wait_until

_GPU = CATALOGUE["t4"]
_SMALL = {
    "model": {"source": "torchvision", "name": "resnet18"},
    "input": {"shape": [3, 32, 32]},
    "batch_size": 2,
    "iterations": 1,
}
#: takes a minute
_LONG = _SMALL | {"gradient_accumulation_steps": 1000, "iterations": 4}


class _InterruptedError(BaseException):
    """Interrupts a question, as a lost lease does."""


def _interrupt(*_: object) -> None:
    raise _InterruptedError


@pytest.fixture
def others() -> set[psutil.Process]:
    """Return what other tests have left running, such as a warm engine."""
    return set(psutil.Process().children())


@pytest.fixture
def engine(others: set[psutil.Process]) -> Iterator[Engine]:
    """Start an engine that has run a job."""
    with start_engine("auto", find_runtime(None)) as engine:
        engine.trace(parse_job_spec(_SMALL), _GPU)
        yield engine


@pytest.fixture
def host(engine: Engine, others: set[psutil.Process]) -> psutil.Process:
    """Return the engine's process."""
    (host,) = set(psutil.Process().children()) - others
    return host


def _ask_and_be_interrupted(engine: Engine, host: psutil.Process) -> psutil.Process:
    """Ask about a long job until it runs; return the process that runs it."""
    seen: list[psutil.Process] = []

    def wait_for_the_job() -> None:
        wait_until(lambda: bool(host.children(recursive=True)), "the job runs")
        seen.extend(host.children(recursive=True))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, _interrupt)
    watcher = threading.Thread(target=wait_for_the_job)
    watcher.start()
    try:
        with pytest.raises(_InterruptedError):
            engine.trace(parse_job_spec(_LONG), _GPU)
    finally:
        watcher.join()
        signal.signal(signal.SIGUSR1, before)
    return seen[0]


def test_a_job_is_stopped_and_its_host_stays_warm(
    engine: Engine, host: psutil.Process, others: set[psutil.Process]
) -> None:
    """GIVEN a long job WHEN it is interrupted THEN it ends, and the same process runs the next."""
    job = _ask_and_be_interrupted(engine, host)
    engine.stop_job()

    assert not job.is_running()
    traced = engine.trace(parse_job_spec(_SMALL | {"batch_size": 3}), _GPU)
    assert traced.num_parameters > 0
    assert set(psutil.Process().children()) - others == {host}


def test_a_host_that_does_not_obey_is_ended(engine: Engine, host: psutil.Process) -> None:
    """GIVEN a host that hangs WHEN its job is to be stopped THEN another runs the next one."""
    host.suspend()

    engine.stop_job()

    assert not host.is_running()
    assert engine.trace(parse_job_spec(_SMALL | {"batch_size": 3}), _GPU).num_parameters > 0


def test_lines_are_yielded_one_by_one(tmp_path: Path) -> None:
    """What comes after a line is kept, and can be seen."""
    path = tmp_path / "lines"
    path.write_bytes(b"two\nthree\nhal")
    number = os.open(path, os.O_RDONLY)
    lines = Lines(number, b"one\n")

    walk = iter(lines)

    assert (next(walk), lines.rest) == (b"one\n", b"")
    assert (next(walk), lines.rest) == (b"two\n", b"three\nhal")
    assert [*walk] == [b"three\n"]
    assert lines.fileno() == number
    os.close(number)
