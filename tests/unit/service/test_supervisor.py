"""Programs that are kept running, and ended in order."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from memgate_service.cli import supervisor as module
from memgate_service.cli.supervisor import Program, Supervisor

#: says that it is there; writes a name to a file when it is told to end, and ends
_TELLS = "trap 'echo $0 >> $1; exit' TERM; echo ready; while :; do sleep 0.02; done"


class _Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> _Clock:
    """Have the supervisor look at a clock of ours."""
    clock = _Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    """Make one whose programs are over when the test is."""
    supervisor = Supervisor(tmp_path)
    yield supervisor
    supervisor.stop()


def _wait_for(program: Program) -> None:
    assert program.process is not None
    program.process.wait(30)


def _sleeper(name: str = "sleeper", level: int = 0, grace_seconds: float = 10.0) -> Program:
    return Program(name=name, command=["sleep", "1000"], level=level, grace_seconds=grace_seconds)


def test_what_dies_is_started_again_later_and_later(supervisor: Supervisor, clock: _Clock) -> None:
    """At once would be a frenzy: each time it waits twice as long, up to a bound."""
    program = Program(name="false", command=["false"])
    supervisor.start(program)
    waited = []
    for _ in range(8):
        _wait_for(program)
        start, deaths = clock.now, supervisor.deaths("false")
        while supervisor.deaths("false") == deaths:
            clock.now += 0.1
            supervisor.look()
        waited.append(round(clock.now - start, 1))

    assert waited == [0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0]


def test_what_ran_for_long_is_started_again_at_once(supervisor: Supervisor, clock: _Clock) -> None:
    """It has earned trust, and its delay is short again."""
    program = _sleeper()
    program.delay_seconds = 5.0
    supervisor.start(program)
    clock.now += 60
    supervisor.look()
    first = program.process
    assert first is not None
    first.kill()
    first.wait(30)

    supervisor.look()

    assert program.process is not first
    assert program.delay_seconds == 0.4
    assert supervisor.deaths("sleeper") == 1
    assert supervisor.deaths("other") == 0


def test_what_lives_is_left_alone(supervisor: Supervisor) -> None:
    """One start, one process."""
    program = _sleeper()
    supervisor.start(program)
    first = program.process

    supervisor.look()

    assert program.process is first


def test_higher_levels_end_first(supervisor: Supervisor, tmp_path: Path) -> None:
    """What needs others is ended while they are still there, whatever the order of the starts."""
    said = tmp_path / "said"
    for name, level in (("queue", 0), ("service", 2), ("worker", 1)):
        command = ["sh", "-c", _TELLS, name, str(said)]
        supervisor.start(Program(name=name, command=command, level=level))
        _wait_until_ready(supervisor, name)

    supervisor.stop()

    assert said.read_text().split() == ["service", "worker", "queue"]


def _wait_until_ready(supervisor: Supervisor, name: str) -> None:
    deadline = time.monotonic() + 30
    while supervisor.last_words(name) != "ready":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_what_does_not_listen_is_killed_after_its_grace(supervisor: Supervisor) -> None:
    """All of a level share the wait: it is not the sum of their graces."""
    deaf = "trap '' TERM; echo ready; while :; do sleep 1000; done"
    programs = [
        Program(name=f"deaf {n}", command=["sh", "-c", deaf], grace_seconds=0.5) for n in range(4)
    ]
    for program in programs:
        supervisor.start(program)
        _wait_until_ready(supervisor, program.name)

    supervisor.stop()

    assert all(program.process and program.process.poll() is not None for program in programs)


def test_programs_die_with_the_one_that_looks_after_them(tmp_path: Path) -> None:
    """However it ends: nothing is left behind."""
    script = (
        "import os, pathlib, signal, sys\n"
        "from memgate_service.cli.supervisor import *\n"
        "program = Program(name='sleeper', command=['sleep', '1000'])\n"
        "Supervisor(pathlib.Path(sys.argv[1])).start(program)\n"
        "print(program.process.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", script, tmp_path], stdout=subprocess.PIPE, text=True, check=False
    )
    gone = Path("/proc") / killed.stdout.strip()

    deadline = time.monotonic() + 30
    while gone.exists() and "Z" not in (gone / "stat").read_text().split()[2]:
        assert time.monotonic() < deadline, "it was left behind"
        time.sleep(0.05)


def test_it_runs_until_it_is_over(supervisor: Supervisor, clock: _Clock) -> None:
    """Other things get done meanwhile."""
    done: list[float] = []

    supervisor.run(_after(3), meanwhile=lambda: done.append(clock.now))

    assert len(done) == 3


def _after(count: int) -> Callable[[], bool]:
    left = iter([False] * count)
    return lambda: next(left, True)


def test_the_last_words_are_kept(supervisor: Supervisor) -> None:
    """What a program said before it died is what its user wants to know."""
    program = Program(name="talker", command=["sh", "-c", "echo one; echo two >&2"])
    supervisor.start(program)
    _wait_for(program)

    assert supervisor.last_words("talker") == "two"
    assert supervisor.last_words("nobody") == "it said nothing"
