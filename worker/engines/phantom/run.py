"""Runs one job on the phantom and tells what the real allocator did. Needs torch.

Called by ``host`` in a process of the job's own. Nothing here knows about GPUs' names, capacities
or verdicts.
"""

from __future__ import annotations

import time
from importlib.metadata import PackageNotFoundError, version

import torch

from memgate.jobspec import JobSpec
from worker.engines.phantom.answer import Answer
from worker.engines.phantom.control import Phantom
from worker.engines.phantom.labels import label_blocks
from worker.engines.phantom.observer import Observer
from worker.engines.phantom.tracker import Tracker, to_events
from worker.jobs.loop import TrainingLoop
from worker.jobs.models import build_model

_VERSIONED = ("torch", "torchvision", "transformers", "timm")

#: counters that the simulator must reproduce
_COMPARED = frozenset(
    f"{counter}.{pool}.peak"
    for counter in ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
    for pool in ("all", "small_pool", "large_pool")
)


def run_job(spec: JobSpec, phantom: Phantom) -> Answer:
    """Run a job's iterations and return what the real allocator did."""
    start = time.perf_counter()
    torch.cuda.init()
    tracker = Tracker()
    # Needs a driver to choose its engine; flash attention is what else would be taken.
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cudnn.benchmark = spec.cudnn_benchmark
    observer = Observer(tracker.position)
    loop = TrainingLoop(spec, build_model(spec.model), "cuda")
    observer.watch(loop)
    built = time.perf_counter()
    loop.run(observer.on_phase)
    ran = time.perf_counter()
    stats = torch.cuda.memory_stats()
    events, blocks = to_events(tracker.rows())
    labels = label_blocks(
        blocks, phases=observer.phases, layers=observer.layers, tensors=observer.tensors
    )
    return Answer(
        events=tuple(events),
        labels=labels,
        memory_stats={name: int(value) for name, value in stats.items() if name in _COMPARED},
        num_parameters=sum(parameter.numel() for parameter in loop.model.parameters()),
        num_data_sized_results=phantom.counters().num_data_sized_results,
        versions={name: _version(name) for name in _VERSIONED},
        seconds={"build": built - start, "run": ran - built, "label": time.perf_counter() - ran},
    )


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "absent"
