"""A profiler trace that somebody recorded -> TracedJob: no job is run."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import BinaryIO

from memgate.gpus import GpuSpec
from memgate.pipeline import make_timeline
from memgate.rules import DeviceTraits
from memgate.trace import MAX_TRACE_BYTES, read_trace
from memgate_worker.engines.traced import TracedJob


def analyze_trace(
    stream: BinaryIO,
    gpu: GpuSpec,
    *,
    alloc_conf: str = "",
    without: Iterable[str] = (),
    max_bytes: int = MAX_TRACE_BYTES,
) -> TracedJob:
    """Turn a trace of a CPU into the timeline that the job would have on a GPU.

    ``without`` names rules of the orchestration that are left out.

    Raises:
        InputError: if it is not a trace, or lacks something.
        UnsupportedTraceError: if it is of a kind that is not analysed.
    """
    start = time.perf_counter()
    trace = read_trace(stream, max_bytes=max_bytes)
    device = DeviceTraits(compute_capability=gpu.compute_capability)
    return TracedJob(
        timeline=make_timeline(trace, device, without=without),
        engine="profile",
        runtime="",
        versions={},
        alloc_conf=alloc_conf,
        num_parameters=0,
        notes=(),
        seconds=time.perf_counter() - start,
    )
