"""Measures what large jobs on many GPUs take of this machine, by a spec: time and memory.

``make bench-ranks`` runs it: ``memgate estimate`` in a process of its own for each job, imports
included, as somebody types it. It fails if a bound is exceeded. Bounds are of processor time, which
says the same on a busy machine as far as anything does; the time on the clock is shown beside it.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

GPU = "h100-80"
MAX_BYTES = 1_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A Llama with checkpointing in bf16, divided by FSDP2, and what it may take."""

    name: str
    batch_size: int
    world_size: int
    #: None: it is answered, however long it takes
    max_seconds: float | None

    def spec(self) -> str:
        """Return the job."""
        return json.dumps(
            {
                "model": {"source": "transformers", "name": self.name},
                "input": {"sequence_length": 4096},
                "batch_size": self.batch_size,
                "precision": "bf16",
                "gradient_checkpointing": True,
                "optimizer": {"name": "AdamW"},
                "distributed": {"strategy": "fsdp2", "world_size": self.world_size},
            }
        )


CASES = (
    Case(name="meta-llama/Meta-Llama-3-8B", batch_size=2, world_size=8, max_seconds=15),
    Case(name="meta-llama/Meta-Llama-3-70B", batch_size=1, world_size=64, max_seconds=60),
    Case(name="meta-llama/Llama-3.1-405B", batch_size=1, world_size=512, max_seconds=None),
)


def main() -> int:
    """Measure all, print a table, and return 1 if something took too much."""
    table = Table("job", "GPUs", "answer", "ranks run", "processor, s", "clock, s", "memory, MiB")
    missed = []
    for case in CASES:
        answer, processor, clock = _measure(case)
        # of the largest process so far; jobs come in the order of their size
        memory_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
        ranks = ", ".join(str(one["rank"]) for one in answer["ranks"])
        figures = (f"{processor:.1f}", f"{clock:.1f}", f"{memory_bytes >> 20}")
        table.add_row(case.name, str(case.world_size), answer["decision"], ranks, *figures)
        is_slow = case.max_seconds is not None and processor > case.max_seconds
        if is_slow or memory_bytes > MAX_BYTES:
            missed.append(case.name)
    console = Console()
    console.print(table)
    console.print(f"load: {' '.join(f'{one:.1f}' for one in os.getloadavg())}")
    if missed:
        console.print(f"too slow, or too large: {', '.join(missed)}")
    return 1 if missed else 0


def _measure(case: Case) -> tuple[dict[str, Any], float, float]:
    """Return an answer, and the seconds that it took: of processors, and on the clock."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    ran = subprocess.run(
        [Path(sys.executable).with_name("memgate"), "estimate", "-", "--gpu", GPU, "--json"],
        input=case.spec().encode(),
        stdout=subprocess.PIPE,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return json.loads(ran.stdout), processor, time.perf_counter() - start


if __name__ == "__main__":
    sys.exit(main())
