"""``memgate.estimate`` with a real runtime: answers, and what stays between calls."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from memgate import JobSpec, estimate, read_timeline
from memgate.errors import MemgateError
from memgate.local import close_engines
from memgate.units import GIB
from tests.running import wait_until

JOB: dict[str, Any] = {
    "model": {"source": "torchvision", "name": "resnet18"},
    "input": {"shape": [3, 32, 32]},
    "batch_size": 4,
}

#: prints two answers, and which processes are left in between
_PROGRAM = """
import os, sys
import psutil
from memgate import estimate
job = {job!r}
print(estimate(job, "rtx-3060").decision, flush=True)
print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
print(estimate(job | {{"batch_size": 8}}, "rtx-3060").decision, flush=True)
"""


@pytest.fixture(scope="module", autouse=True)
def _engines() -> Iterator[None]:
    """Leave no engine behind; within this module they stay warm."""
    yield
    close_engines()


def _hosts() -> set[int]:
    children = psutil.Process().children()
    return {child.pid for child in children if child.status() != psutil.STATUS_ZOMBIE}


def test_a_spec_a_dict_and_a_file_have_the_same_answer(tmp_path: Path) -> None:
    """And the process that ran the first answers the others."""
    close_engines()
    path = tmp_path / "job.yaml"
    path.write_text(JobSpec.model_validate(JOB).model_dump_json(exclude_unset=True))

    said = [estimate(job, "rtx-3060") for job in (JOB, JobSpec.model_validate(JOB), path)]

    assert len({one.model_copy(update={"timings_ms": {}}).model_dump_json() for one in said}) == 1
    assert [bool(one.timings_ms["run"]) for one in said] == [True, False, False]
    assert said[0].decision == "admit"
    assert said[0].runtime


def test_the_engine_stays_warm_and_can_be_closed() -> None:
    """Another job finds the same process; a closed engine is started again."""
    close_engines()  # those of other tests
    before = _hosts()
    estimate(JOB, "rtx-3060")
    hosts = _hosts() - before
    assert len(hosts) == 1
    estimate(JOB | {"batch_size": 5}, "rtx-3060")
    assert _hosts() - before == hosts

    close_engines()
    assert not hosts & _hosts()
    assert estimate(JOB, "rtx-3060").timings_ms["run"]


def test_a_thread_that_ends_leaves_the_engine_to_others() -> None:
    """Threads are answered one after the other, each with its own answer."""
    said: dict[int, int] = {}

    def ask(batch_size: int) -> None:
        said[batch_size] = estimate(JOB | {"batch_size": batch_size}, "rtx-3060").peak_bytes

    close_engines()
    before = _hosts()
    threads = [threading.Thread(target=ask, args=(batch_size,)) for batch_size in (4, 64, 256)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (host,) = _hosts() - before

    ask(512)
    assert _hosts() - before == {host}
    assert sorted(said) == [4, 64, 256, 512]
    assert len(set(said.values())) == 4
    assert [said[size] for size in sorted(said)] == sorted(said.values())


def test_an_interrupted_question_does_not_spoil_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer would come when the next one is asked: the engine is ended."""
    from memgate_worker.engines.host_client import Host

    receive = Host._receive
    estimate(JOB, "rtx-3060")

    def interrupt(_: Host) -> Any:
        monkeypatch.setattr(Host, "_receive", receive)
        raise KeyboardInterrupt

    monkeypatch.setattr(Host, "_receive", interrupt)
    with pytest.raises(KeyboardInterrupt):
        estimate(JOB | {"batch_size": 8}, "rtx-3060")

    large = estimate(JOB | {"batch_size": 1024}, "rtx-3060")
    assert large.peak_bytes > 2 * estimate(JOB | {"batch_size": 8}, "rtx-3060").peak_bytes


def test_a_fork_starts_an_engine_of_its_own() -> None:
    """Two processes must not talk to one host."""
    estimate(JOB, "rtx-3060")
    child = os.fork()
    if child == 0:
        try:
            said = estimate(JOB | {"batch_size": 8}, "rtx-3060")
            close_engines()
            os._exit(0 if said.decision == "admit" and said.timings_ms["run"] else 1)
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)

    assert os.waitstatus_to_exitcode(status) == 0
    assert estimate(JOB | {"batch_size": 16}, "rtx-3060").decision == "admit"


def test_engines_end_with_the_process() -> None:
    """Nothing is left that somebody would have to end."""
    command = [sys.executable, "-c", _PROGRAM.format(job=JOB)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)

    first, hosts, second = ran.stdout.splitlines()
    assert (first, second) == ("admit", "admit")
    assert hosts.split()
    left = [int(pid) for pid in hosts.split()]
    wait_until(lambda: not any(map(psutil.pid_exists, left)), "all of them have ended", 10)


def test_limits_are_arguments() -> None:
    """A job that takes longer than it may is ended, and the limit is named."""
    slow = JOB | {"model": {"source": "torchvision", "name": "densenet201"}, "iterations": 64}

    with pytest.raises(MemgateError, match=r"0\.2 s"):
        estimate(slow, "rtx-3060", timeout_seconds=0.2, host_memory_bytes=4 * GIB)


def test_a_run_that_is_kept_is_answered_alike(tmp_path: Path, run: Any) -> None:
    """By a replay of the file: everywhere that the run would be the same."""
    spec, file = tmp_path / "job.json", tmp_path / "job.memgate"
    spec.write_text(json.dumps(JOB))

    ran = run("estimate", spec, "--gpu", "rtx-3060", "-o", file, "--json")

    assert ran.status == 0, ran.err
    kept = json.loads(ran.out)

    said = estimate(file, "rtx-3060").model_dump(mode="json")
    for name in ("runtime", "timings_ms", "fits_on", "phases", "recording", "explanation"):
        kept.pop(name)
        said.pop(name)
    assert said == kept
    recorded = read_timeline(file)
    assert [mark.step for mark in recorded.marks] == [None, 0, 1, 2, 3]
    assert recorded.gpu.traits.memory_bytes is None
