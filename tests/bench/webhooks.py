"""``python -m tests.bench.webhooks``: what the gate adds to an object that Kubernetes makes.

In this process, on a real Valkey: mostly recorded reviews of a real API server, answers known. Each
line is for one review; the bounds are those that docs/operations.md promises.
"""

from __future__ import annotations

import json
import os
import sys
import time
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import anyio
import httpx2
from fastapi import FastAPI
from rich.console import Console
from rich.table import Table

from memgate.units import GIB
from memgate_service.http.app import create_app
from memgate_service.settings import ServiceSettings
from memgate_worker.queue.store import JobStore
from tests.admission import answer_work, make_pod, make_review, read_recorded
from tests.valkey import running_valkey

_NUM = 1_000

#: at most, at the 99th percentile, in milliseconds
_BOUNDS_MS = {"without our annotation": 5.0, "known": 20.0}

#: too little, so that it is refused with the largest batch, which is a question of its own
_DECLARED = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 1000}

#: what is asked about: whether somebody must have answered, and the review
_REVIEWS = {
    "pod, without our annotation": read_recorded("create-without"),
    "Job, known": read_recorded("create-job"),
    "Deployment on either of two GPUs, known": read_recorded("create-deployment"),
    "RayJob, known": read_recorded("create-rayjob"),
    "pod that declares too little, known": make_review(make_pod(limits=_DECLARED)),
}


async def measure() -> list[tuple[str, str, list[float]]]:
    """Send every review many times, one after the other; return how long each took."""
    with running_valkey() as url:
        return await _measure(create_app(ServiceSettings(redis_url=url)))


async def _measure(app: FastAPI) -> list[tuple[str, str, list[float]]]:
    store: JobStore = app.state.dependencies.queue.store
    transport = httpx2.ASGITransport(app=app)
    found = []
    async with httpx2.AsyncClient(transport=transport, base_url="http://memgate") as client:
        for title, review in _REVIEWS.items():
            for verb in ("validate", "mutate"):
                for _ in range(2):
                    await _send(client, verb, review, timeout="0s")
                    for job_id in store.open_jobs():
                        said = answer_work(store.read(job_id).work, GIB)
                        store.finish(job_id, said.model_dump_json())
                await _send(client, verb, review)
                took = [await _send(client, verb, review) for _ in range(_NUM)]
                found.append((title, verb, sorted(took)))
    return found


async def _send(client: Any, verb: str, review: Any, timeout: str = "10s") -> float:
    body = json.dumps(review).encode()
    path = f"/webhooks/kubernetes/{verb}?timeout={timeout}"
    start = time.perf_counter()
    answer = await client.post(path, content=body, headers={"Content-Type": "application/json"})
    seconds = time.perf_counter() - start
    assert answer.status_code == 200, answer.text
    return seconds * 1000


def main() -> None:
    """Print the table; exit 1 if a bound is broken."""
    with Path(os.devnull).open("w") as nowhere, redirect_stderr(nowhere):  # a line each
        found = anyio.run(measure)
    table = Table("object", "webhook", "median ms", "p99 ms", "bound ms")
    is_good = True
    for title, verb, took in found:
        bound = next(most for name, most in _BOUNDS_MS.items() if name in title)
        p99 = took[int(0.99 * len(took))]
        is_good &= p99 <= bound
        table.add_row(title, verb, f"{took[len(took) // 2]:.2f}", f"{p99:.2f}", f"{bound:.0f}")
    Console().print(table)
    sys.exit(not is_good)


if __name__ == "__main__":
    main()
