"""Measures the phantom beside PyTorch's own MemTracker on FakeTensors, on the same two jobs.

``make compare`` runs it. Both run the same loop with the same libraries. MemTracker adds up
tensors: it knows neither segments nor what cuBLAS takes, so its peak is to be held against what was
allocated, while a GPU must have what was reserved.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.replay import replay
from memgate.errors import InputError
from memgate.gpus import find_gpu
from memgate.jobspec import JobSpec, parse_job_spec
from memgate.units import MIB
from memgate_worker.engines.host_client import host_environment
from memgate_worker.engines.phantom.engine import TRACE_CAPACITY_BYTES, PhantomEngine
from memgate_worker.runtimes.runtime import Runtime, find_runtime

EXAMPLES = Path(__file__).parents[2] / "deploy" / "examples"
GPU = find_gpu("a100-40")


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """What the phantom says of a job."""

    allocated_bytes: int
    reserved_bytes: int
    seconds: float


def example_jobs() -> dict[str, JobSpec]:
    """Return the jobs of the examples; ResNet-50 with a batch of 32."""
    found = {
        "ResNet-50, batch 32": ("resnet50.json", {"batch_size": 32}),
        "GPT-2": ("gpt2.yaml", {}),
    }
    return {
        name: parse_job_spec(yaml.safe_load((EXAMPLES / file).read_text()) | change)
        for name, (file, change) in found.items()
    }


def ask_phantom(spec: JobSpec, runtime: Runtime) -> Peaks:
    """Trace a job with a warm engine."""
    with PhantomEngine(runtime) as engine:
        # Another batch size: it imports torch, and an engine remembers jobs that it has run.
        engine.trace(spec.model_copy(update={"batch_size": spec.batch_size + 1}), GPU)
        traced = engine.trace(spec, GPU)
    run = replay(traced.timeline, parse_alloc_conf(spec.allocator), TRACE_CAPACITY_BYTES)
    return Peaks(
        allocated_bytes=run.peak_allocated_bytes,
        reserved_bytes=run.peak_reserved_bytes,
        seconds=traced.seconds,
    )


def ask_mem_tracker(specs: list[JobSpec], runtime: Runtime) -> list[dict[str, Any]]:
    """Ask MemTracker in a process of the runtime."""
    ran = subprocess.run(
        [runtime.python, "-m", "tests.bench.fake_tensor"],
        input=json.dumps([spec.model_dump_json(by_alias=True) for spec in specs]),
        env=host_environment(runtime) | {"PYTHONPATH": str(runtime.own)},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    answers: list[dict[str, Any]] = json.loads(ran.stdout)
    return answers


def main() -> None:
    """Print the table."""
    runtime = find_runtime(None)
    jobs = example_jobs()
    table = Table(
        *("job", "estimator", "MiB", "of allocated", "seconds"),
        title=f"the phantom beside MemTracker, {runtime.name}",
        title_justify="left",
    )
    answers = ask_mem_tracker(list(jobs.values()), runtime)
    for (name, spec), theirs in zip(jobs.items(), answers, strict=True):
        ours = ask_phantom(spec, runtime)
        for label, size_bytes, seconds in (
            ("phantom, reserved", ours.reserved_bytes, ours.seconds),
            ("phantom, allocated", ours.allocated_bytes, ours.seconds),
            ("MemTracker", theirs["peak_bytes"], theirs["seconds"]),
        ):
            share = size_bytes / ours.allocated_bytes
            table.add_row(name, label, f"{size_bytes / MIB:,.0f}", f"{share:.1%}", f"{seconds:.2f}")
        table.add_section()
    console = Console(width=100, highlight=False)
    console.print(table)
    console.print("seconds: in a warm process, which has run such a job before")


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(f"compare: {error.message}")
