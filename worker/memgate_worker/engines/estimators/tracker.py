"""JobSpec -> the peak that PyTorch's own MemTracker sees on FakeTensors. Needs torch."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed._tools.mem_tracker import MemTracker

from memgate.jobspec import JobSpec
from memgate_worker.jobs.loop import TrainingLoop
from memgate_worker.jobs.models import build_model

_DEVICE = "cuda"


def track_peak(spec: JobSpec) -> int:
    """Run a job on FakeTensors and return the peak that MemTracker saw."""
    tracker = MemTracker()
    with FakeTensorMode():
        # A FakeTensor cannot be moved in place, so the model is made where it shall be.
        with torch.device(_DEVICE):
            model: Any = build_model(spec.model)
        model.to = lambda *_, **__: model
        loop = TrainingLoop(spec, model, _DEVICE)
        tracker.track_external(loop.model, loop.optimizers[0])
        # It refuses a second iteration otherwise; the peak is kept.
        loop.optimizers[0].register_step_post_hook(lambda *_: tracker.reset_mod_stats())
        with tracker:
            loop.run()
    peaks = tracker.get_tracker_snapshot("peak")
    return int(next(sizes["Total"] for device, sizes in peaks.items() if device.type == _DEVICE))
