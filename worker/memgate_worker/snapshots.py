"""A memory snapshot and a GPU -> an estimate: nothing is run.

Of several devices in a snapshot each is answered for, on a GPU of its own of the kind that was
asked about. The worst answer counts, and says what the others are.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import BinaryIO

from memgate.explanation import name_verdict
from memgate.gpus import GpuTarget
from memgate.report import Reason
from memgate.snapshots.reading import (
    MAX_SNAPSHOT_BYTES,
    DeviceHistory,
    read_histories,
    read_snapshot,
)
from memgate.units import format_size
from memgate_worker.engines.traced import TracedJob
from memgate_worker.timings import TimedEstimate, time_estimate


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
    start = time.perf_counter()
    snapshot = read_snapshot(stream, max_bytes=max_bytes, on_unpacked=on_unpacked)
    histories = read_histories(snapshot, device=device, alloc_conf=alloc_conf or None)
    seconds = time.perf_counter() - start
    answers = [_estimate(history, target, seconds) for history in histories]
    worst = min(answers, key=lambda one: (one.estimate.decision, -one.estimate.needs_bytes))
    said = worst.estimate
    reasons = list(said.reasons)
    if len(answers) > 1:
        reasons.append(_tell_devices(histories, answers, histories[answers.index(worst)].device))
    update: dict[str, object] = {"reasons": reasons}
    if worst.traced.doubts:  # it is the least that is known: elsewhere the doubts are the same
        update["fits_on"] = []
    return worst._replace(estimate=said.model_copy(update=update))


def _estimate(history: DeviceHistory, target: GpuTarget, seconds: float) -> TimedEstimate:
    traced = TracedJob(
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
    timed = time_estimate(lambda: traced, target)
    took = timed.estimate.timings_ms
    read = round(seconds * 1000)
    timings = took | {"trace": read, "total": read + took["replay"]}
    return timed._replace(estimate=timed.estimate.model_copy(update={"timings_ms": timings}))


def _tell_devices(
    histories: list[DeviceHistory], answers: list[TimedEstimate], worst: int
) -> Reason:
    told = "; ".join(
        f"device {history.device} {name_verdict(answer.estimate.decision, answer.estimate.gpu)},"
        f" needs {format_size(answer.estimate.needs_bytes)}"
        for history, answer in zip(histories, answers, strict=True)
    )
    return Reason(
        code="SEVERAL_DEVICES",
        message=f"{told}; this is the answer for device {worst}, the worst of them",
    )
