"""A profiler trace that somebody recorded -> TracedJob: no job is run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import BinaryIO

from memgate.errors import InputError
from memgate.gpus import GpuSpec
from memgate.measured import MEASURED, Measurement, measure
from memgate.pipeline import AnalyzedTrace, analyze
from memgate.plan import DeviceTraits
from memgate.trace import MAX_TRACE_BYTES, Trace, read_trace
from memgate.whole_steps import settle_inference
from memgate_worker.engines.traced import TracedJob


def analyze_trace(
    stream: BinaryIO,
    gpu: GpuSpec,
    *,
    alloc_conf: str = "",
    without: Iterable[str] = (),
    inference: bool = False,
    max_bytes: int = MAX_TRACE_BYTES,
    on_unpacked: Callable[[int], None] = lambda _: None,
) -> TracedJob:
    """Turn a trace of a CPU into the timeline that the job would have on a GPU.

    A trace of a GPU has the timeline that the job had.

    ``without`` names rules of the orchestration that are left out. ``inference``: the caller asks
    about a job that does not train. ``on_unpacked`` is told the size before anything is decoded.

    Raises:
        InputError: if it is not a trace, or lacks something.
        UnsupportedTraceError: if it is of a kind that is not analysed.
    """
    start = time.perf_counter()
    trace = read_trace(stream, max_bytes=max_bytes, on_unpacked=on_unpacked)
    found = _measure(trace, without) if trace.device_events else _analyze(trace, gpu, without)
    doubts, notes = settle_inference(found.doubts, found.notes, is_asked=inference)
    return TracedJob(
        timeline=found.timeline,
        engine=MEASURED if trace.device_events else "profile",
        runtime="",
        versions={},
        alloc_conf=alloc_conf,
        num_parameters=0,
        notes=notes,
        doubts=doubts,
        peaks=found.peaks if isinstance(found, Measurement) else None,
        seconds=time.perf_counter() - start,
    )


def _analyze(trace: Trace, gpu: GpuSpec, without: Iterable[str]) -> AnalyzedTrace:
    device = DeviceTraits(
        compute_capability=gpu.compute_capability, multiprocessors=gpu.multiprocessors
    )
    return analyze(trace, device, without=without)


def _measure(trace: Trace, without: Iterable[str]) -> Measurement:
    if rules := ", ".join(without):
        raise InputError(f"rules ({rules}) are for traces of a CPU; this one was made on a GPU")
    return measure(trace)
