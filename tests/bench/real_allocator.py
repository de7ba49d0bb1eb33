"""Drives torch's own caching allocator, on the phantom GPU, and measures it.

``measure_real`` runs this file inside a runtime, which has torch, and nothing of the tests: so it
imports nothing of them before that. The loop over the events is Python's: what the same loop takes
for a function that does nothing is subtracted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from memgate.timeline import Timeline
    from memgate_worker.runtimes.runtime import Runtime

_TRIES = 3


def measure_real(runtime: Runtime, timeline: Timeline) -> float:
    """Return the processor seconds of torch's allocator for a timeline of one stream."""
    from memgate.gpus import CATALOGUE
    from memgate.timeline import Alloc, Free
    from memgate_worker.engines.host_client import host_environment, package_dirs
    from memgate_worker.engines.phantom.engine import describe_device

    rows = []
    for event in timeline.events:
        if isinstance(event, Alloc):
            rows.append([event.block_id, event.size_bytes])
        elif isinstance(event, Free):
            rows.append([event.block_id, -1])
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(rows, file)
        file.flush()
        ran = subprocess.run(
            [str(runtime.python), "-P", __file__, file.name, *map(str, package_dirs())],
            env=host_environment(runtime) | describe_device(CATALOGUE["a100-80"]),
            capture_output=True,
            text=True,
            check=True,
        )
    return float(ran.stdout)


def _run(rows: list[list[int]], allocate: Any, free: Any) -> float:
    live: dict[int, int] = {}
    start = time.process_time()
    for block_id, size in rows:
        if size >= 0:
            live[block_id] = allocate(size, 0)
        else:
            free(live.pop(block_id))
    seconds = time.process_time() - start
    for address in live.values():
        free(address)
    return seconds


def main() -> None:
    """Print the seconds, the best of some tries."""
    import os

    path, memgate, worker = sys.argv[1:]
    sys.path += [str(Path(memgate).parent), str(Path(worker).parent)]
    from memgate_worker.hook.memgate_hook.phantom import Phantom

    Phantom(Path(os.environ["MEMGATE_PHANTOM_LIBRARIES"]), None)
    import torch

    torch.cuda.init()
    rows = [row for row in json.loads(Path(path).read_text()) if row[1]]
    allocate = torch._C._cuda_cudaCachingAllocator_raw_alloc
    free = torch._C._cuda_cudaCachingAllocator_raw_delete
    real = min(_run(rows, allocate, free) for _ in range(_TRIES))
    empty = min(_run(rows, lambda size, _: size, lambda _: None) for _ in range(_TRIES))
    sys.stdout.write(str(real - empty))


if __name__ == "__main__":
    main()
