"""Measures the service under load, beside a FastAPI route that returns a constant.

``make load`` runs it: wrk asks a real service on a real Valkey for an answer
that was worked out before, and the constant route of ``constant_app``, served by the same
server with the same settings, turn and turn about. Figures are of this machine, in this run; only
ratios travel. The exit status is 1 if a bound is missed.

Known limitations: wrk waits for an answer before a connection sends its next request. The latency
at half load is therefore taken over many connections that think for a random time in between.
Other programs on the machine only add to a latency: the best round counts, and the constant's own
stands beside it.
"""

from __future__ import annotations

import argparse
import gzip
import io
import json
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from memgate.contract import Priority
from memgate.gpus import parse_gpu
from memgate.pipeline import analyze, estimate_timeline
from memgate.plan import DeviceTraits
from memgate.report import Estimate
from memgate.schemas import EstimateCreate
from memgate.trace import read_trace
from memgate_worker.queue.client import QueueClient
from memgate_worker.queue.settings import QueueSettings
from tests.builders import TINY_TRACES
from tests.parts import find_part, part_environment
from tests.running import post, serving
from tests.valkey import running_valkey

#: what a scheduler asks
QUESTION = json.dumps(
    {
        "job": {
            "model": {"source": "torchvision", "name": "resnet50"},
            "input": {"shape": [3, 224, 224]},
            "batch_size": 32,
            "optimizer": {"name": "Adam"},
        },
        "gpu": "rtx-3060",
    }
).encode()

NUM_WAITING = 64
#: the bounds: of the constant route's rate, at half load, and with clients that wait
MIN_RATIO = 0.5
MAX_P99_MS = 50.0
MAX_SLOWDOWN = 2.0

_SCRIPT = Path(__file__).with_suffix(".lua")
_TRACE = Path(__file__).parents[1] / "data" / "traces" / f"{TINY_TRACES[0]}.json.gz"
_CONNECTIONS = 16
_THINKING_CONNECTIONS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What is asked for."""

    url: str
    method: str = "GET"
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What wrk saw."""

    requests: int
    seconds: float
    failed: int
    p50_ms: float
    p99_ms: float

    @property
    def rate(self) -> float:
        """Requests per second."""
        return self.requests / self.seconds


def measure(target: Target, seconds: float, rate: float | None = None) -> Measured:
    """Ask as often as possible, or about so often."""
    wrk = find_part("wrk")
    assert wrk is not None
    connections = _CONNECTIONS if rate is None else _THINKING_CONNECTIONS
    delay_ms = 0.0 if rate is None else 1000 * connections / rate
    given = {"METHOD": target.method, "BODY": target.body.decode(), "MEAN_DELAY_MS": str(delay_ms)}
    ran = subprocess.run(
        [
            *(str(wrk), "--threads", "1", "--connections", str(connections), "--timeout", "10s"),
            *("--duration", f"{seconds:g}s", "--script", str(_SCRIPT), target.url),
        ],
        env=part_environment() | given,
        capture_output=True,
        text=True,
        check=True,
    )
    measured = Measured(**json.loads(ran.stdout.partition("measured ")[2]))
    assert measured.requests, ran.stdout
    assert not measured.failed, ran.stdout
    return measured


@contextmanager
def started() -> Iterator[tuple[Target, Target, str]]:
    """Start everything; yield the constant route, the cached question, the service's address."""
    with ExitStack() as stack:
        logs = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = stack.enter_context(running_valkey())
        store_answer(url)
        bases = []
        for module in ("tests.bench.constant_app", "memgate_service"):
            # A limit on how long it may take to end: by then clients may still be waiting.
            served = serving(logs / f"{module}.log", module=module, grace_seconds=5, redis_url=url)
            bases.append(stack.enter_context(served).url)
        constant, base = Target(url=f"{bases[0]}/constant"), bases[1]
        cached = Target(url=f"{base}/estimate", method="POST", body=QUESTION)
        status, _ = post(cached.url, QUESTION)
        assert status == 200, status
        yield constant, cached, base


def make_answer() -> Estimate:
    """Make an answer to the question: that of a small real trace."""
    target = parse_gpu("rtx-3060")
    trace = read_trace(io.BytesIO(gzip.decompress(_TRACE.read_bytes())))
    timeline = analyze(
        trace, DeviceTraits(compute_capability=target.gpu.compute_capability)
    ).timeline
    return estimate_timeline(timeline, target, engine="phantom", runtime="torch-2.14", versions={})


def store_answer(url: str) -> None:
    """Store an answer to the question, as a worker would."""
    work = EstimateCreate.model_validate_json(QUESTION).work()
    queue = QueueClient(QueueSettings(redis_url=url))
    queue.store.create(work.id(), work, Priority.NORMAL)
    queue.store.finish(work.id(), make_answer().model_dump_json())
    queue.close()


@contextmanager
def waiting_clients(base: str, number: int) -> Iterator[None]:
    """Have clients wait for jobs that do not end while the block runs."""
    host, _, port = base.removeprefix("http://").partition(":")
    question = json.loads(QUESTION)
    with ExitStack() as stack:
        for seed in range(number):
            question["job"]["batch_size"] = 1000 + seed
            body = json.dumps(question).encode()
            client = stack.enter_context(socket.create_connection((host, int(port))))
            head = (
                f"POST /estimate HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
                f"Prefer: wait=60\r\nContent-Length: {len(body)}\r\n\r\n"
            )
            client.sendall(head.encode() + body)
        yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a run found."""

    constant: list[Measured]
    cached: list[Measured]
    with_waiting: list[Measured]
    half_load: list[Measured]
    constant_half_load: list[Measured]

    @property
    def ratio(self) -> float:
        """The cached answer's rate, of the constant's; the median of neighbours in time."""
        pairs = zip(self.cached, self.constant, strict=True)
        return median(ours.rate / theirs.rate for ours, theirs in pairs)

    @property
    def slowdown(self) -> float:
        """How much slower cached answers are while clients wait."""
        pairs = zip(self.cached, self.with_waiting, strict=True)
        return median(without.rate / waited.rate for without, waited in pairs)

    @property
    def p99_ms(self) -> float:
        """At half load, of the best round."""
        return min(one.p99_ms for one in self.half_load)


def run(rounds: int, seconds: float) -> Figures:
    """Measure everything, turn and turn about."""
    found = Figures(constant=[], cached=[], with_waiting=[], half_load=[], constant_half_load=[])
    with started() as (constant, cached, base):
        for target in (constant, cached):
            measure(target, 1)  # warm
        for _ in range(rounds):
            found.constant.append(measure(constant, seconds))
            found.cached.append(measure(cached, seconds))
            with waiting_clients(base, NUM_WAITING):
                found.with_waiting.append(measure(cached, seconds))
        half = median(one.rate for one in found.cached) / 2
        for _ in range(rounds):
            found.constant_half_load.append(measure(constant, seconds, rate=half))
            found.half_load.append(measure(cached, seconds, rate=half))
    return found


def _row(table: Table, name: str, runs: list[Measured], against: str) -> None:
    table.add_row(
        name,
        f"{median(one.rate for one in runs):,.0f}",
        f"{median(one.p50_ms for one in runs):.2f}",
        f"{median(one.p99_ms for one in runs):.2f}",
        against,
    )


def main() -> None:
    """Measure, print a table, and judge."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.load")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3, help="of each measurement")
    options = parser.parse_args()
    if find_part("wrk") is None:
        sys.exit("wrk is missing: make parts")
    found = run(options.rounds, options.seconds)
    table = Table(title=f"wrk, {_CONNECTIONS} connections, {os.cpu_count()} cores")
    for column in ("", "requests/s", "p50 ms", "p99 ms", "bound"):
        table.add_column(column, justify="left" if not column else "right")
    _row(table, "a constant, FastAPI", found.constant, "")
    ratio = f"{found.ratio:.2f} of the constant (at least {MIN_RATIO})"
    _row(table, "cached POST /estimate", found.cached, ratio)
    slowdown = f"{found.slowdown:.2f} times slower (at most {MAX_SLOWDOWN:g})"
    _row(table, f"  with {NUM_WAITING} clients waiting", found.with_waiting, slowdown)
    _row(table, "a constant, at that half load", found.constant_half_load, "")
    p99 = f"p99 {found.p99_ms:.1f} ms in the best round (under {MAX_P99_MS:g})"
    _row(table, "cached POST /estimate, at half load", found.half_load, p99)
    Console(width=120).print(table)
    held = found.ratio >= MIN_RATIO and found.slowdown <= MAX_SLOWDOWN and found.p99_ms < MAX_P99_MS
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    main()
