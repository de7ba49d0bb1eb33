"""A profiler trace that somebody recorded -> a TracedJob for each device: no job is run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
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
    device: int | None = None,
    inference: bool = False,
    max_bytes: int = MAX_TRACE_BYTES,
    on_unpacked: Callable[[int], None] = lambda _: None,
) -> Iterator[tuple[int, TracedJob]]:
    """Turn a trace of a CPU into the timeline that the job would have on a GPU.

    A trace of GPUs has the timelines that the job had on each: with the number of the device, one
    after the other.

    ``without`` names rules of the orchestration that are left out. ``device`` picks one of several
    GPUs. ``inference``: the caller asks about a job that does not train. ``on_unpacked`` is told
    the size before anything is decoded.

    Raises:
        InputError: if it is not a trace, or lacks something.
        UnsupportedTraceError: if it is of a kind that is not analysed.
    """
    start = time.perf_counter()
    trace = read_trace(stream, max_bytes=max_bytes, on_unpacked=on_unpacked)
    if not trace.device_events:
        analyzed = _analyze(trace, gpu, without, device)
        yield 0, _trace_job(analyzed, alloc_conf, start=start, inference=inference)
        return
    if rules := ", ".join(without):
        raise InputError(f"rules ({rules}) are for traces of a CPU; this one was made on a GPU")
    for found in measure(trace, device=device):
        yield found.device, _trace_job(found, alloc_conf, start=start, inference=inference)


def _analyze(
    trace: Trace, gpu: GpuSpec, without: Iterable[str], device: int | None
) -> AnalyzedTrace:
    if device is not None:
        raise InputError(f"device is {device}: a trace of a CPU has none; leave it out")
    traits = DeviceTraits(
        compute_capability=gpu.compute_capability, multiprocessors=gpu.multiprocessors
    )
    return analyze(trace, traits, without=without)


def _trace_job(
    found: AnalyzedTrace | Measurement, alloc_conf: str, *, start: float, inference: bool
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
        seconds=time.perf_counter() - start,
    )
