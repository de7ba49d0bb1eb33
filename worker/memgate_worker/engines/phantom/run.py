"""Runs one job on the phantom and reports what the real allocator did. Needs torch.

Called by ``host`` in the job's own process. Nothing here knows about GPU names, capacities or
verdicts. A user's own script is run by ``script``, with the same ``Recording``.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from memgate.jobspec import JobSpec
from memgate_worker.engines.messages import RecordedRun
from memgate_worker.engines.phantom.control import Phantom
from memgate_worker.engines.phantom.labels import blocks_seen_as, label_blocks, locate_phases
from memgate_worker.engines.phantom.observer import Observer
from memgate_worker.engines.phantom.tracker import Tracker, to_events
from memgate_worker.engines.phantom.values import follow_values
from memgate_worker.engines.versions import library_versions
from memgate_worker.jobs.loop import TrainingLoop
from memgate_worker.jobs.models import build_model

#: counters that the simulator must reproduce
_COMPARED = frozenset(
    f"{counter}.{pool}.peak"
    for counter in ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
    for pool in ("all", "small_pool", "large_pool")
)


def run_job(spec: JobSpec, phantom: Phantom) -> RecordedRun:
    """Run a job's iterations and return what the real allocator did."""
    recording = Recording(phantom)
    torch.backends.cudnn.benchmark = spec.cudnn_benchmark
    TrainingLoop(spec, build_model(spec.model), "cuda").run()
    return recording.answer()


class Recording:
    """Records what happens on this process's device from now on."""

    def __init__(self, phantom: Phantom, on_step: Callable[[int], None] = lambda _: None) -> None:
        """Listen; ``on_step`` is told after each optimizer step how many there were."""
        self._start = time.perf_counter()
        self._phantom = phantom
        self.tracker = Tracker()
        # When the job first uses CUDA: until then it may still change the allocator's settings.
        torch.cuda._lazy_call(self.tracker.attach)
        phantom.watch_workspaces(self.tracker)
        follow_values()
        # cuDNN's attention needs a driver to choose its engine; flash attention is the alternative.
        torch.backends.cuda.enable_cudnn_sdp(False)
        self._num_steps = 0
        self._on_step = on_step
        self._observer = Observer(self.tracker.position, self._count_step)

    def _count_step(self, num_steps: int) -> None:
        self._num_steps = num_steps
        self._on_step(num_steps)

    def answer(self) -> RecordedRun:
        """Report what has happened so far."""
        ran = time.perf_counter()
        stats = torch.cuda.memory_stats()
        events, blocks, num_before = to_events(self.tracker.rows(), self.tracker.fractions)
        observer = self._observer
        workspaces = frozenset(blocks_seen_as(blocks, self._phantom.workspaces()))
        labels = label_blocks(
            blocks,
            phases=observer.phases,
            layers=observer.layers,
            tensors=observer.tensors,
            workspaces=workspaces,
        )
        return RecordedRun(
            events=tuple(events),
            labels=labels,
            dispensable=workspaces,
            phases=locate_phases(observer.phases, num_before),
            memory_stats={name: int(value) for name, value in stats.items() if name in _COMPARED},
            alloc_conf=_alloc_conf(),
            num_parameters=observer.num_parameters,
            num_steps=self._num_steps,
            num_data_sized_results=self._phantom.counters().num_data_sized_results,
            versions=library_versions(),
            architectures=tuple(torch.cuda.get_arch_list()),
            seconds={"run": ran - self._start, "label": time.perf_counter() - ran},
        )


def _alloc_conf() -> str:
    """Return the allocator's current settings, as the allocator itself reports them.

    ``PYTORCH_ALLOC_CONF`` and ``PYTORCH_CUDA_ALLOC_CONF`` may both be set, which of them counts
    depends on the version of torch, and a script may change the settings later. So torch is asked.
    """
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    return str(settings["PYTORCH_CUDA_ALLOC_CONF"])
