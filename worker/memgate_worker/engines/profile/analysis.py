"""A profiler trace that somebody recorded -> a TracedJob for each device: no job is run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import BinaryIO

from memgate.errors import InputError
from memgate.gpus import GpuSpec
from memgate.measured import MEASURED, Measurement, measure
from memgate.pipeline import AnalyzedTrace, analyze
from memgate.rules import DeviceTraits
from memgate.trace import MAX_TRACE_BYTES, Trace, read_trace
from memgate.whole_steps import settle_inference
from memgate_worker.engines.traced import TracedJob


def analyze_trace(
    stream: BinaryIO,
    gpu: GpuSpec,
    *,
    alloc_conf: str = "",
    without: Iterable[str] = (),
    device: int | None = None,
    inference: bool = False,
    max_bytes: int = MAX_TRACE_BYTES,
    on_unpacked: Callable[[int], None] = lambda _: None,
) -> dict[int, TracedJob]:
    """Turn a trace of a CPU into the timeline that the job would have on a GPU.

    A trace of GPUs has the timelines that the job had on each, by the number of the device.

    ``without`` names rules of the orchestration that are left out. ``device`` picks one of several
    GPUs. ``inference``: the caller asks about a job that does not train. ``on_unpacked`` is told
    the size before anything is decoded.

    Raises:
        InputError: if it is not a trace, or lacks something.
        UnsupportedTraceError: if it is of a kind that is not analysed.
    """
    start = time.perf_counter()
    trace = read_trace(stream, max_bytes=max_bytes, on_unpacked=on_unpacked)
    found: dict[int, AnalyzedTrace | Measurement]
    if trace.device_events:
        found = {one.device: one for one in _measure(trace, without, device)}
    else:
        if device is not None:
            raise InputError(f"device is {device}: a trace of a CPU has none; leave it out")
        traits = DeviceTraits(compute_capability=gpu.compute_capability)
        found = {0: analyze(trace, traits, without=without)}
    seconds = time.perf_counter() - start
    return {
        number: _trace_job(one, alloc_conf, inference=inference, seconds=seconds)
        for number, one in found.items()
    }


def _measure(trace: Trace, without: Iterable[str], device: int | None) -> tuple[Measurement, ...]:
    if rules := ", ".join(without):
        raise InputError(f"rules ({rules}) are for traces of a CPU; this one was made on a GPU")
    return measure(trace, device=device)


def _trace_job(
    found: AnalyzedTrace | Measurement, alloc_conf: str, *, inference: bool, seconds: float
) -> TracedJob:
    doubts, notes = settle_inference(found.doubts, found.notes, is_asked=inference)
    return TracedJob(
        timeline=found.timeline,
        engine=MEASURED if isinstance(found, Measurement) else "profile",
        runtime="",
        versions={},
        alloc_conf=alloc_conf,
        num_parameters=0,
        notes=notes,
        doubts=doubts,
        peaks=found.peaks if isinstance(found, Measurement) else None,
        seconds=seconds,
    )
