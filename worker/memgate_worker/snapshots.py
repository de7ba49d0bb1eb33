"""A memory snapshot and a GPU -> an estimate, of the worst of its devices: nothing is run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import BinaryIO

from memgate.gpus import GpuTarget
from memgate.snapshots.reading import (
    MAX_SNAPSHOT_BYTES,
    DeviceHistory,
    read_histories,
    read_snapshot,
)
from memgate_worker.devices import estimate_devices
from memgate_worker.engines.traced import TracedJob
from memgate_worker.timings import TimedEstimate


def estimate_snapshot(
    stream: BinaryIO,
    target: GpuTarget,
    *,
    device: int | None = None,
    alloc_conf: str = "",
    max_bytes: int = MAX_SNAPSHOT_BYTES,
    on_unpacked: Callable[[int], None] = lambda _: None,
) -> TimedEstimate:
    """Say whether the job of a snapshot fits.

    ``device`` picks one of its devices; ``alloc_conf`` takes the place of its own settings;
    ``on_unpacked`` is told its size before it is decoded.

    Raises:
        SnapshotFormatError: if it is not a snapshot, or not a safe one, or has no such device.
        InputError: if the settings are wrong.
        UnsupportedAllocatorError: if they are not simulated.
    """

    def trace() -> Iterator[tuple[int, TracedJob]]:
        start = time.perf_counter()
        snapshot = read_snapshot(stream, max_bytes=max_bytes, on_unpacked=on_unpacked)
        histories = read_histories(snapshot, device=device, alloc_conf=alloc_conf or None)
        seconds = time.perf_counter() - start
        yield from ((history.device, _trace_job(history, seconds)) for history in histories)

    return estimate_devices(trace(), target)


def _trace_job(history: DeviceHistory, seconds: float) -> TracedJob:
    return TracedJob(
        timeline=history.timeline,
        engine="snapshot",
        runtime="",
        versions={},
        alloc_conf=history.alloc_conf,
        num_parameters=0,
        notes=history.notes,
        doubts=history.doubts,
        seconds=seconds,
    )
