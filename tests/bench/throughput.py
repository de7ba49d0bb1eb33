"""Measures what a service and its workers answer in a second, and what an answer costs them.

``make bench-throughput`` runs it: services and workers on a Valkey of their own, for each number of
them. First each kind of question alone, for the processor seconds that an answer takes of each
program; then all kinds at once, for the rate and the latency of each. The kinds:

- ``cached``: asked before, answered by the service alone;
- ``replay``: a known run under another setting of the allocator, answered by a worker;
- ``new``: a ResNet-50 of another batch size, which is run.

Processor seconds say the same on a busy machine; rates and latencies are of this one.
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from tests.bench.load import QUESTION
from tests.running import answers, post, running, serving, wait_until
from tests.valkey import running_valkey

#: services and workers
SETUPS = ((1, 1), (1, 2), (1, 4), (2, 2))

#: how many clients ask each kind of question in the mix, one after the other
CLIENTS = {"cached": 2, "replay": 2, "new": 2}

#: questions of each kind that are asked alone
_ALONE = {"cached": 300, "replay": 40, "new": 20}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """What was started."""

    urls: list[str]
    services: list[psutil.Process]
    workers: list[psutil.Process]
    valkey: psutil.Process

    def seconds(self) -> dict[str, float]:
        """Return the processor seconds of each kind of program so far."""
        return {
            "service": sum(map(_seconds, self.services)),
            "worker": sum(map(_seconds, self.workers)),
            "valkey": _seconds(self.valkey),
        }


class Questions:
    """Questions of each kind, no two the same but for the cached one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._settings = itertools.count(1_000)
        self._batches = itertools.count(33)

    def make(self, kind: str) -> bytes:
        """Return the next question of a kind."""
        question = json.loads(QUESTION)
        with self._lock:
            if kind == "replay":
                threshold = next(self._settings) / 10_000
                question["job"]["allocator"] = f"garbage_collection_threshold:{threshold:.4f}"
            elif kind == "new":
                question["job"]["batch_size"] = next(self._batches)
        return json.dumps(question).encode()


@contextmanager
def started(num_services: int, num_workers: int) -> Iterator[Place]:
    """Start everything, and have every worker run a job."""
    before = set(psutil.Process().children())
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(running_valkey())
        (valkey,) = set(psutil.Process().children()) - before
        workers = [
            stack.enter_context(running("memgate_worker", home / f"w{at}.log", redis_url=url))
            for at in range(num_workers)
        ]
        served = [
            stack.enter_context(serving(home / f"s{at}.log", redis_url=url, grace_seconds=5))
            for at in range(num_services)
        ]
        urls = [one.url for one in served]
        wait_until(lambda: all(answers(f"{one}/readyz") for one in urls), "workers", 300)
        yield Place(
            urls=urls,
            services=[psutil.Process(one.process.pid) for one in served],
            workers=[psutil.Process(one.pid) for one in workers],
            valkey=valkey,
        )


def ask(place: Place, questions: Questions, kind: str, at: int = 0) -> float:
    """Ask one question of a kind; return how long the answer took."""
    body = questions.make(kind)
    start = time.perf_counter()
    status, answer = post(f"{place.urls[at % len(place.urls)]}/estimate", body, Prefer="wait=60")
    assert status == 200, answer
    return time.perf_counter() - start


def measure_alone(place: Place, questions: Questions, kind: str) -> dict[str, float]:
    """Return the processor milliseconds that one answer takes of each program."""
    before = place.seconds()
    for at in range(_ALONE[kind]):
        ask(place, questions, kind, at)
    after = place.seconds()
    return {name: 1000 * (after[name] - before[name]) / _ALONE[kind] for name in after}


def measure_mix(place: Place, questions: Questions, seconds: float) -> dict[str, list[float]]:
    """Ask questions of all kinds at once for a while; return how long each answer took."""
    took: dict[str, list[float]] = defaultdict(list)
    until = time.monotonic() + seconds

    def go_on(kind: str, at: int) -> None:
        while time.monotonic() < until:
            took[kind].append(ask(place, questions, kind, at))

    kinds = [kind for kind, number in CLIENTS.items() for _ in range(number)]
    clients = [threading.Thread(target=go_on, args=pair) for pair in zip(kinds, itertools.count())]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    return took


def _seconds(process: psutil.Process) -> float:
    processes = [process, *process.children(recursive=True)]
    return float(sum(sum(one.cpu_times()[:4]) for one in processes))


def measure(num_services: int, num_workers: int, seconds: float) -> dict[str, Any]:
    """Return all figures of a set-up, as they are written down."""
    questions = Questions()
    with started(num_services, num_workers) as place:
        for at in range(4 * num_workers):  # each of them imports torch for its first
            ask(place, questions, "new", at)
        for at in range(2 * num_services):
            ask(place, questions, "cached", at)
        alone = {kind: measure_alone(place, questions, kind) for kind in _ALONE}
        mix = measure_mix(place, questions, seconds)
    told = {
        kind: {
            "per_second": len(took) / seconds,
            "p50_ms": 1000 * median(took),
            "p99_ms": 1000 * quantiles(took, n=100)[-1] if len(took) > 1 else 1000 * took[0],
        }
        for kind, took in sorted(mix.items())
    }
    return {"services": num_services, "workers": num_workers, "alone_ms": alone, "mix": told}


def main() -> None:
    """Measure each set-up, and print two tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.throughput")
    parser.add_argument("--seconds", type=float, default=20, help="of each mix")
    parser.add_argument("--output", type=Path, default=Path("build/throughput.json"))
    options = parser.parse_args()
    found = [measure(*setup, options.seconds) for setup in SETUPS]
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(found, indent=2) + "\n")
    alone = Table(
        "set-up", "question", "service", "worker", "valkey", title="processor ms an answer"
    )
    mix = Table("set-up", "question", "per second", "p50 ms", "p99 ms", title="all at once")
    for one in found:
        name = f"{one['services']} services, {one['workers']} workers"
        for kind, took in one["alone_ms"].items():
            alone.add_row(
                name, kind, *(f"{took[of]:.1f}" for of in ("service", "worker", "valkey"))
            )
        for kind, told in one["mix"].items():
            mix.add_row(
                name,
                kind,
                f"{told['per_second']:.1f}",
                *(f"{told[of]:.0f}" for of in ("p50_ms", "p99_ms")),
            )
    console = Console(width=110)
    console.print(alone)
    console.print(mix)


if __name__ == "__main__":
    main()
