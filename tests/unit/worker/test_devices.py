"""Traces of several GPUs: each is answered, the worst decides, one can be picked."""

from __future__ import annotations

import io
from typing import Any

import pytest

from memgate.errors import TraceFormatError
from memgate.gpus import parse_gpu
from memgate.report import Estimate
from memgate.units import GIB
from memgate_worker.uploads.judging import judge
from memgate_worker.uploads.question import UploadQuestion
from tests.gpu_traces import V100, GpuTrace


def _train(*sizes: int, **options: int) -> GpuTrace:
    """Train two steps, with activations of so many bytes on each device."""
    trace = GpuTrace(**options)
    for _ in range(2):
        with trace.forward():
            for device, size in enumerate(sizes):
                trace.alloc(0x1000, size, device=device)
        with trace.backward():
            for device, size in enumerate(sizes):
                trace.free(0x1000, size, device=device)
        with trace.step():
            trace.alloc(0x3000, 512)
            trace.free(0x3000)
    return trace


def _judge(trace: GpuTrace, gpu: str, **options: Any) -> Estimate:
    content = trace.to_bytes(deviceProperties=[V100, V100 | {"id": 1}])
    question = UploadQuestion(target=parse_gpu(gpu), **options)
    return judge(io.BufferedReader(io.BytesIO(content)), question).estimate


def test_of_several_devices_the_worst_decides() -> None:
    """Each is answered for a GPU of its own, and told."""
    said = _judge(_train(GIB, 12 * GIB), "rtx-3060")

    assert (said.decision, said.peak_allocated_bytes) == ("reject", 12 * GIB)
    told = said.reasons[-1]
    assert told.code == "SEVERAL_DEVICES"
    assert "device 0 fits on rtx-3060" in told.message
    assert "device 1 does not fit on rtx-3060" in told.message
    assert told.message.endswith("this is the answer for device 1, the worst of them")


def test_of_devices_that_fit_the_one_that_needs_most_is_answered() -> None:
    """A GPU on which all of them fit is one on which the job does."""
    said = _judge(_train(20 * GIB, GIB), "a100-80gb")

    assert (said.decision, said.peak_allocated_bytes) == ("admit", 20 * GIB)
    assert said.fits_on
    assert "rtx-3060" not in said.fits_on


@pytest.mark.parametrize(("device", "want"), [(0, "admit"), (1, "reject")])
def test_a_device_can_be_picked(device: int, want: str) -> None:
    """Then the others are not looked at."""
    said = _judge(_train(GIB, 12 * GIB), "rtx-3060", device=device)

    assert said.decision == want
    assert "SEVERAL_DEVICES" not in [reason.code for reason in said.reasons]
    assert set(said.timings_ms) == {"run", "trace", "replay", "total"}


def test_a_device_that_is_not_there_is_named() -> None:
    """With those that are."""
    with pytest.raises(TraceFormatError, match="device 2 is not in the trace"):
        _judge(_train(GIB, GIB), "t4", device=2)


def test_sizes_alone_are_never_admitted() -> None:
    """A file of old PyTorch: the least does not fit, or nobody knows; it fits nowhere for sure."""
    trace = _train(9 * GIB)
    for event in trace.events:
        if event["name"] == "[memory]":
            del event["cat"]
            for name in ("Addr", "Total Allocated", "Total Reserved"):
                del event["args"][name]

    large, small = _judge(trace, "h200"), _judge(trace, "rtx-4060")

    assert (large.engine, large.decision, large.fits_on) == ("measured", "uncertain", [])
    assert (large.reasons[0].code, small.decision) == ("TOTALS_MISSING", "reject")
    assert large.peak_allocated_bytes == 9 * GIB
