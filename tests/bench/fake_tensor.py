"""Job specs -> peaks, by PyTorch's own MemTracker on FakeTensors. Runs inside a runtime.

Started by ``compare``: a list of job specs as JSON on standard input, a list of answers on standard
output. The loop is the one that the phantom runs, so that only the estimators differ.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from memgate_worker.hook.memgate_hook.phantom import Phantom

# Before torch is imported, which needs CUDA's libraries even if nothing runs on a device.
Phantom(Path(os.environ["MEMGATE_PHANTOM_LIBRARIES"]))

from memgate.jobspec import JobSpec  # noqa: E402
from memgate_worker.engines.estimators.tracker import track_peak  # noqa: E402


def _answer(spec: JobSpec) -> dict[str, Any]:
    """Track a job twice: the first time fills caches, the second is timed."""
    track_peak(spec)
    start = time.perf_counter()
    peak_bytes = track_peak(spec)
    return {"peak_bytes": peak_bytes, "seconds": time.perf_counter() - start}


if __name__ == "__main__":
    specs = [JobSpec.model_validate_json(text) for text in json.load(sys.stdin)]
    json.dump([_answer(spec) for spec in specs], sys.stdout)
