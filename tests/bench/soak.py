"""Measures whether anything grows while ``memgate up`` is asked all sorts of things: ``make soak``.

Every quarter of a minute it notes the memory and the open files of each process, keys without
expiry, temporary files and Valkey's memory. The limits on what is stored are small, so that they
are reached early. It fails if, from minute ten on, something has grown by more than 5 % and 10 MB,
or if there are more open files, lasting keys or temporary files.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import os
import random
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from redis import Redis
from rich.console import Console

from memgate.units import MIB
from tests.integration.faults import GPUS, MODELS
from tests.integration.whole import Whole
from tests.running import ask

_SAMPLE_SECONDS = 15.0
_SETTLED_MINUTES = 10.0

#: what may be kept; small, so that all of it is reached
_BUDGET = {
    "MEMGATE_MAX_JOBS": "200",
    "MEMGATE_MAX_TIMELINES_BYTES": str(2 * MIB),
    "MEMGATE_MAX_UPLOADS_BYTES": str(MIB),
    "MEMGATE_RESULT_TTL_SECONDS": "300",
    "MEMGATE_TRACE_TTL_SECONDS": "60",
    "MEMGATE_AUDIT_MAX": "200",
}

_MAX_GROWTH_BYTES = 10 * MIB
_MAX_GROWTH_RATIO = 1.05

#: samples at either end: what is under way comes and goes
_NUM_COMPARED = 8

#: of a lasting key, or an open file: a few come and go with what happens to be under way
_SLACK = 8


class Load:
    """Clients that ask all sorts of things, at a rate."""

    def __init__(self, url: str, rate: float) -> None:
        self._url, self._seconds = url, 1 / rate
        self._chance = random.Random(1)
        self._sizes = itertools.count(1)
        self._stopped = threading.Event()
        self.answers: Counter[str] = Counter()
        self._asks: list[tuple[Callable[[], tuple[int, Any]], int]] = [
            (self._new, 6),
            (self._known, 10),
            (self._hostile, 4),
            (self._upload, 2),
            (self._list, 2),
            (self._cancel, 1),
        ]
        self._thread = threading.Thread(target=self._keep_asking)

    def start(self) -> None:
        """Ask from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Ask no more."""
        self._stopped.set()
        self._thread.join()

    def _keep_asking(self) -> None:
        asks, weights = zip(*self._asks, strict=True)
        while not self._stopped.wait(self._seconds):
            [one] = self._chance.choices(asks, weights)
            status, _ = one()
            self.answers[f"{one.__name__.strip('_')} {status}"] += 1

    def _question(self, batch_size: int) -> dict[str, Any]:
        job = {
            "model": {"source": "torchvision", "name": MODELS[batch_size % len(MODELS)]},
            "input": {"shape": [3, 64, 64]},
            "batch_size": batch_size,
            "iterations": 1,
        }
        return {"job": job, "gpu": GPUS[batch_size % len(GPUS)]}

    def _new(self) -> tuple[int, Any]:
        return ask(f"{self._url}/estimate", "POST", self._question(next(self._sizes)), wait=10)

    def _known(self) -> tuple[int, Any]:
        return ask(f"{self._url}/estimate", "POST", self._question(1), wait=10)

    def _hostile(self) -> tuple[int, Any]:
        bodies: list[object] = [
            {"job": "x" * 100_000, "gpu": "t4"},
            {"job": {"model": {"source": "timm", "name": "a" * 1000}}},
            [[[[]]]],
            self._question(1) | {"gpu": "no such gpu"},
        ]
        return ask(f"{self._url}/estimate", "POST", self._chance.choice(bodies))

    def _upload(self) -> tuple[int, Any]:
        filling = self._chance.randbytes(40_000).hex()
        form = (
            '--b\r\nContent-Disposition: form-data; name="request"\r\n\r\n{"gpu": "t4"}\r\n'
            '--b\r\nContent-Disposition: form-data; name="trace"; filename="t"\r\n\r\n'
            f'{{"traceEvents": [], "note": "{filling}"}}\r\n--b--\r\n'
        )
        content = "multipart/form-data; boundary=b"
        return ask(f"{self._url}/estimate", "POST", form.encode(), wait=10, content=content)

    def _list(self) -> tuple[int, Any]:
        return ask(f"{self._url}/jobs?limit=200", "GET")

    def _cancel(self) -> tuple[int, Any]:
        status, body = ask(f"{self._url}/estimate", "POST", self._question(next(self._sizes)))
        return ask(f"{self._url}/jobs/{body['id']}", "DELETE") if status == 202 else (status, body)


def sample(whole: Whole, redis: Any, temporary: Path) -> dict[str, float]:
    """Note what there is now."""
    found: dict[str, float] = {}
    for kind, processes in whole.processes().items():
        if kind == "job":
            continue  # each ends with its job
        for number, process in enumerate(sorted(processes, key=lambda one: one.pid)):
            with suppress(psutil.NoSuchProcess):
                found[f"memory of {kind} {number}"] = process.memory_info().rss
                found[f"files of {kind} {number}"] = process.num_fds()
    found["memory of valkey's data"] = redis.info("memory")["used_memory"]
    with redis.pipeline(transaction=False) as pipeline:
        for key in redis.scan_iter(count=1000):
            pipeline.ttl(key)
        found["lasting keys"] = sum(ttl == -1 for ttl in pipeline.execute())
    found["temporary files"] = sum(len(files) for _, _, files in os.walk(temporary))
    return found


def judge(samples: list[tuple[float, dict[str, float]]]) -> list[str]:
    """Return what has grown since minute ten: the last samples against the first ones then."""
    grown = []
    series: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for minute, found in samples:
        for name, value in found.items():
            series[name].append((minute, value))
    for name, values in series.items():
        settled = [value for minute, value in values if minute >= _SETTLED_MINUTES]
        if not settled:
            continue
        was, now = max(settled[:_NUM_COMPARED]), min(settled[-_NUM_COMPARED:])
        if "memory" in name:
            is_more = now > was * _MAX_GROWTH_RATIO and now > was + _MAX_GROWTH_BYTES
        else:
            is_more = now > was + _SLACK
        if is_more:
            grown.append(
                f"{name}: {was:.0f} in minute {_SETTLED_MINUTES:.0f}, {now:.0f} at the end"
            )
    return grown


def draw(samples: list[tuple[float, dict[str, float]]], path: Path) -> None:
    """Draw the memory of each process over time."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.subplots()
    names = sorted({name for _, found in samples for name in found if "memory" in name})
    for name in names:
        points = [(minute, found[name] / MIB) for minute, found in samples if name in found]
        axes.plot(*zip(*points, strict=True), label=name.removeprefix("memory of "))
    axes.set(xlabel="minutes", ylabel="MiB", ylim=0)
    axes.grid(alpha=0.3)
    axes.legend(ncols=3, fontsize="small")
    figure.savefig(path, dpi=110)


def main() -> None:
    """Soak, and say what has grown."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.soak")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--rate", type=float, default=4, help="requests a second")
    parser.add_argument("--plot", type=Path, help="PNG to draw")
    parser.add_argument("--csv", type=Path, help="where all samples go")
    given = parser.parse_args()
    with TemporaryDirectory(prefix="soak") as home:
        samples, answers = _soak(Path(home), given.minutes, given.rate)
    if given.plot:
        draw(samples, given.plot)
    if given.csv:
        _write(samples, given.csv)
    console = Console(width=120, highlight=False)
    console.print(f"{answers.total()} requests in {given.minutes:g} minutes: {dict(answers)}")
    for name, value in samples[-1][1].items():
        console.print(f"{name}: {f'{value / MIB:.1f} MiB' if 'memory' in name else int(value)}")
    grown = judge(samples)
    sys.exit("\n".join(["has grown:", *grown]) if grown else None)


def _soak(
    home: Path, minutes: float, rate: float
) -> tuple[list[tuple[float, dict[str, float]]], Counter[str]]:
    temporary = home / "tmp"
    temporary.mkdir()
    samples: list[tuple[float, dict[str, float]]] = []
    settings = _BUDGET | {"TMPDIR": str(temporary)}
    with Whole(home / "data", **settings) as whole:
        load = Load(whole.url, rate)
        redis: Any = Redis(unix_socket_path=str(home / "data" / "valkey.sock"))
        load.start()
        start = time.monotonic()
        try:
            while (minute := (time.monotonic() - start) / 60) < minutes:
                samples.append((minute, sample(whole, redis, temporary)))
                time.sleep(_SAMPLE_SECONDS)
        finally:
            load.stop()
            redis.close()
    return samples, load.answers


def _write(samples: list[tuple[float, dict[str, float]]], path: Path) -> None:
    names = sorted({name for _, found in samples for name in found})
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["minute", *names])
        rows.writerows(
            [f"{m:.2f}", *(found.get(name, "") for name in names)] for m, found in samples
        )


if __name__ == "__main__":
    main()
