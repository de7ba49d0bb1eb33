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

import torch  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402
from torch.distributed._tools.mem_tracker import MemTracker  # noqa: E402

from memgate.jobspec import JobSpec  # noqa: E402
from memgate_worker.jobs.loop import TrainingLoop  # noqa: E402
from memgate_worker.jobs.models import build_model  # noqa: E402

DEVICE = "cuda"


def track_peak(spec: JobSpec) -> int:
    """Run a job on FakeTensors and return the peak that MemTracker saw."""
    tracker = MemTracker()
    with FakeTensorMode():
        # A FakeTensor cannot be moved in place, so the model is made where it shall be.
        with torch.device(DEVICE):
            model = build_model(spec.model)
        model.to = lambda *_, **__: model
        loop = TrainingLoop(spec, model, DEVICE)
        tracker.track_external(loop.model, loop.optimizers[0])
        # It refuses a second iteration otherwise; the peak is kept.
        loop.optimizers[0].register_step_post_hook(lambda *_: tracker.reset_mod_stats())
        with tracker:
            loop.run()
    peaks = tracker.get_tracker_snapshot("peak")
    return int(next(sizes["Total"] for device, sizes in peaks.items() if device.type == DEVICE))


def _answer(spec: JobSpec) -> dict[str, Any]:
    """Track a job twice: the first time fills caches, the second is timed."""
    track_peak(spec)
    start = time.perf_counter()
    peak_bytes = track_peak(spec)
    return {"peak_bytes": peak_bytes, "seconds": time.perf_counter() - start}


if __name__ == "__main__":
    specs = [JobSpec.model_validate_json(text) for text in json.load(sys.stdin)]
    json.dump([_answer(spec) for spec in specs], sys.stdout)
