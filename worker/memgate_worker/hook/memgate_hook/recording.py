"""Records what happens on this process's device, in the form in which it is written down.

Used by the hook in people's own environments, and by the phantom engine for job specs. What the
rows and marks mean is worked out by memgate afterwards (``engines.phantom.recorded``).
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import time
from typing import Any, Callable

import torch

from .adjustments import take_flash_attention
from .buckets import Buckets
from .communication import Communication
from .observer import Observer
from .phantom import Phantom
from .ranks import stand_for_all_ranks
from .stages import Stages
from .tracker import Tracker
from .values import follow_values

#: counters that the simulator must reproduce
_COMPARED = tuple(
    f"{counter}.{pool}.peak"
    for counter in ("allocated_bytes", "reserved_bytes", "active_bytes", "requested_bytes")
    for pool in ("all", "small_pool", "large_pool")
)

#: libraries whose versions may change a job's memory
_VERSIONED = (
    *("torch", "torchvision", "torchaudio", "transformers", "timm", "diffusers", "accelerate"),
    *("peft", "trl", "lightning", "pytorch-lightning", "deepspeed", "bitsandbytes", "triton"),
)


class Recording:
    """Records from now on."""

    def __init__(self, phantom: Phantom, on_progress: Callable[[], None] = lambda: None) -> None:
        """Listen; ``on_progress`` is called after each step, and while the job evaluates.

        Raises:
            OSError: what listens to torch does not go with this torch.
        """
        self._start = time.perf_counter()
        self._phantom = phantom
        self.tracker = Tracker(phantom.library_dir)
        # When the job first uses CUDA: until then it may still change the allocator's settings.
        torch.cuda._lazy_call(self.tracker.attach)
        phantom.watch_workspaces(self.tracker)
        follow_values(phantom.library_dir)
        take_flash_attention()
        self._communication = Communication(phantom)
        stand_for_all_ranks(phantom, self._communication)

        def progress() -> None:
            self._communication.note_step(self.stages.num_steps)
            on_progress()

        self.stages = Stages(self.tracker.position, self.tracker.take_peak, progress)
        self._buckets = Buckets(self.tracker.position)
        self._observer = Observer(self.tracker.position, self.stages)
        #: by device
        self._earlier_peaks: dict[int, dict[str, int]] = {}

    @property
    def has_idle_optimizer(self) -> bool:
        """There is an optimizer that has made no step."""
        return self._observer.has_idle_optimizer

    def note_peaks(self) -> None:
        """Keep the real allocator's peaks, which are about to be reset."""
        for device in self._phantom.used_devices():
            earlier = self._earlier_peaks.setdefault(device, {})
            for name, value in _peaks(device).items():
                earlier[name] = max(value, earlier.get(name, 0))

    def describe(self) -> dict[str, Any]:
        """Return what has happened so far, as plain values, without the tracker's rows."""
        ran = time.perf_counter()
        self.note_peaks()
        own = self.tracker.own_device
        counters = self._phantom.counters(own)
        return {
            "phases": self._observer.phases,
            "layers": self._observer.layers,
            "tensors": self._observer.tensors,
            "workspaces": self._phantom.workspaces(),
            "possible_workspaces": self._phantom.possible_workspaces(),
            "buckets": self._buckets.spans,
            "work_areas": self._phantom.work_areas(),
            "fractions": self.tracker.fractions,
            "stages": self.stages.marks,
            "steps": self.stages.steps,
            "shapes": [[shapes, count] for shapes, count in self.stages.shapes.items()],
            "num_steps": self.stages.num_steps,
            "has_evaluated": self.stages.evaluations.are_known,
            "larger_loader": self.stages.larger_loader,
            "has_idle_optimizer": self.has_idle_optimizer,
            "training_loop": self._observer.turns.loop,
            "memory_stats": self._earlier_peaks.get(own) or _peaks(own),
            "own_device": own,
            "device_peak_bytes": counters.peak_bytes,
            "alloc_conf": _alloc_conf(),
            "num_parameters": self._observer.num_parameters,
            "num_data_sized_results": counters.num_data_sized_results,
            "knows_pools": self.tracker.knows_pools,
            "cudnn_benchmark": torch.backends.cudnn.benchmark,
            "is_cudnn_lost": self._phantom.is_cudnn_lost,
            "num_communicators": counters.num_communicators,
            "nccl_variables": {k: v for k, v in os.environ.items() if k.startswith("NCCL_")},
            "ranks": self._communication.describe(),
            "other_devices": self._other_devices(own),
            "unmodelled": counters.unmodelled,
            "versions": _versions(),
            "architectures": torch.cuda.get_arch_list(),
            "seconds": ran - self._start,
        }

    def _other_devices(self, own: int) -> list[tuple[int, int]]:
        """Return the other devices that have a context, and the most that was allocated there."""
        used = (device for device in self._phantom.used_devices() if device != own)
        return [(device, self.tracker.most_bytes(device)) for device in used]


def _peaks(device: int) -> dict[str, int]:
    stats = torch.cuda.memory_stats(device)
    return {name: int(stats[name]) for name in _COMPARED}


def _alloc_conf() -> str:
    """Return the allocator's current settings, as the allocator itself reports them.

    ``PYTORCH_ALLOC_CONF`` and ``PYTORCH_CUDA_ALLOC_CONF`` may both be set, which of them counts
    depends on the version of torch, and a script may change the settings later. So torch is asked.
    """
    settings = torch.cuda.memory._snapshot()["allocator_settings"]
    return str(settings["PYTORCH_CUDA_ALLOC_CONF"])


def _versions() -> dict[str, str]:
    found = {name: _version(name) for name in _VERSIONED}
    present = {name: version for name, version in found.items() if version is not None}
    return {"python": platform.python_version(), **present}


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
