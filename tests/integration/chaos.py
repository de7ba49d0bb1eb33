"""A round of chaos: valid and hostile traffic while everything fails, and what is left of it.

Processes are killed and stopped, and Valkey runs out of memory; ``test_pauses`` moves the clocks.
``faults`` asks the valid questions and checks the answers; here is what befalls the programs
meanwhile, the hostile traffic, and what may not be left behind.
"""

from __future__ import annotations

import random
import shutil
import signal
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from redis import Redis
from redis.exceptions import RedisError

from memgate.units import MIB
from tests.integration.faults import Round, run_round
from tests.integration.whole import KINDS, Whole, wait_until
from tests.running import ask

#: a stop is longer than a lease, shorter than anybody's patience
_STOP_SECONDS = 3.0

#: all is well again so soon after the last fault
_RECOVERY_SECONDS = 90.0

#: how much the service may have grown in a round
_MAX_SERVICE_BYTES = 250 * MIB

_HOSTILE: list[tuple[str, str, object]] = [
    ("POST", "/estimate", {"job": "x" * 100_000, "gpu": "t4"}),
    ("POST", "/estimate", [[[[[]]]]]),
    ("POST", "/fit", {"job": {"model": {"source": "torchvision", "name": "no such model"}}}),
    ("POST", "/estimate", {"gpu": {"memory_bytes": -1}}),
    ("GET", "/jobs?limit=200", None),
    ("GET", "/jobs/" + "0" * 32, None),
    ("DELETE", "/jobs/" + "f" * 32, None),
    ("PUT", "/estimate", {}),
]


@dataclass(slots=True)
class Chaos:
    """What befell the programs in a round, and what was wrong at its end."""

    faults: Counter[str] = field(default_factory=Counter)
    hostile: Counter[int] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    round: Round | None = None

    def line(self) -> str:
        """Say it in one line."""
        assert self.round is not None
        faults = " ".join(f"{name}={count}" for name, count in sorted(self.faults.items()))
        return (
            f"{self.round.line()}; besides: {faults};"
            f" hostile requests: {dict(sorted(self.hostile.items()))};"
            f" wrong: {self.wrong or 'none'}"
        )


def run_chaos(home: Path, *, num_jobs: int, seconds: float, seed: int) -> Chaos:
    """Ask, attack and break things for some seconds; return what came of it."""
    chaos, stopped = Chaos(), threading.Event()
    with Whole(home / "data") as whole:
        breaking = threading.Thread(target=_break, args=(whole, chaos, stopped, seed))
        attacking = threading.Thread(target=_attack, args=(whole, chaos, stopped, seed))
        timer = threading.Timer(seconds, stopped.set)
        for thread in (breaking, attacking, timer):
            thread.start()
        try:
            kills = random.Random(seed).sample(KINDS, k=3)
            chaos.round = run_round(whole, num_jobs, kills, seed)
        finally:
            stopped.set()
            timer.cancel()
            breaking.join()
            attacking.join()
        chaos.wrong += chaos.round.failures
        chaos.wrong += _find_what_is_left(whole, home / "data")
    chaos.wrong += [f"{process} still runs" for process in whole.alive()]
    shutil.rmtree(home / "data")
    return chaos


def _break(whole: Whole, chaos: Chaos, stopped: threading.Event, seed: int) -> None:
    """Do one harm after the other, and undo each."""
    chance = random.Random(seed)
    while not stopped.wait(chance.uniform(1, 4)):
        name = chance.choice(("stop worker", "stop valkey", "stop service", "full"))
        if name == "full":
            done = _fill(whole, stopped)
        else:
            done = _pause(whole, name.split()[1], chance, stopped)
        chaos.faults[name] += done


def _pause(whole: Whole, kind: str, chance: random.Random, stopped: threading.Event) -> bool:
    if not (victims := whole.processes()[kind]):
        return False
    victim = chance.choice(victims)
    with suppress(psutil.NoSuchProcess):
        victim.send_signal(signal.SIGSTOP)
        stopped.wait(_STOP_SECONDS)
        victim.send_signal(signal.SIGCONT)
        return True
    return False


def _fill(whole: Whole, stopped: threading.Event) -> bool:
    """Let Valkey have no memory for a while."""
    try:
        with _store_of(whole) as redis:
            redis.config_set("maxmemory", "1mb")
            stopped.wait(_STOP_SECONDS)
            redis.config_set("maxmemory", 0)
            return True
    except RedisError:  # it was killed: the next one has its memory
        return False


def _store_of(whole: Whole) -> Any:
    return Redis(unix_socket_path=str(whole.data / "valkey.sock"), socket_timeout=5)


def _attack(whole: Whole, chaos: Chaos, stopped: threading.Event, seed: int) -> None:
    chance = random.Random(seed)
    while not stopped.wait(0.05):
        method, path, body = chance.choice(_HOSTILE)
        status, said = ask(f"{whole.url}{path}", method, body)
        chaos.hostile[status] += 1
        if status == 500:
            chaos.wrong.append(f"{method} {path}: {said}")


def _find_what_is_left(whole: Whole, data: Path) -> list[str]:
    """Return what is not as it was: not ready, a job open, a process or a key too many."""
    found = []
    try:
        wait_until(lambda: _ready(whole), _RECOVERY_SECONDS, "not ready again")
    except AssertionError as error:
        found.append(str(error))
    with _store_of(whole) as redis:
        if num_open := redis.zcard("memgate:open"):
            found.append(f"{num_open} jobs are open")
        found += _find_lasting_keys(redis)
    wait_until(lambda: not whole.processes()["job"], _RECOVERY_SECONDS, "a job's process is left")
    for process in whole.processes()["service"]:
        if (size := process.memory_info().rss) > _MAX_SERVICE_BYTES:
            found.append(f"the service has {size} bytes")
    found += [f"left: {path}" for path in data.rglob("*.tmp")]
    return found


def _ready(whole: Whole) -> bool:
    start = time.monotonic()
    status, _ = ask(f"{whole.url}/readyz", "GET")
    return status == 200 and time.monotonic() - start < 2


def _find_lasting_keys(redis: Any) -> list[str]:
    """Return keys that never expire and are no index."""
    known = (b"memgate:jobs", b"memgate:open", b"memgate:counters", b"memgate:timelines")
    own = [key for key in redis.scan_iter("memgate:*") if not key.startswith(known)]
    return [f"lasts: {key.decode()}" for key in own if redis.ttl(key) == -1]
