"""Memory events of GPUs: what they must have, and what old files do not have."""

from __future__ import annotations

import io
import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memgate.errors import TraceFormatError, UnsupportedTraceError
from memgate.measured import measure
from memgate.trace import Trace, read_trace
from tests.builders import mib
from tests.gpu_traces import V100, GpuTrace


def _memory(at_us: int, size_bytes: int | None, device: Any = 0, **args: Any) -> dict[str, Any]:
    """Make an event as PyTorch 1.9 wrote it: no category, no address, no totals."""
    sizes = {"Device Type": 1, "Device Id": device, "Bytes": size_bytes}
    return {"ph": "i", "name": "[memory]", "ts": at_us, "tid": 7, "args": sizes | args}


def _read(*events: dict[str, Any]) -> Trace:
    operator = {"ph": "X", "cat": "Operator", "name": "aten::mm", "ts": 1, "dur": 1, "tid": "7"}
    kernel = operator | {"cat": "Kernel", "name": "sgemm"}
    on_cpu = _memory(1, 64, -1, **{"Device Type": 0})
    document = {
        "schemaVersion": 1,
        "deviceProperties": [V100],
        "traceEvents": [on_cpu, operator, kernel, *events],
    }
    return read_trace(io.BytesIO(json.dumps(document).encode()))


def test_sizes_alone_are_added_up() -> None:
    """What they show is the least: what was there before is not in the file."""
    trace = _read(_memory(2, mib(3)), _memory(4, -mib(3)), _memory(3, mib(5)), _memory(5, -mib(5)))
    (measured,) = measure(trace)

    assert [event.allocated_bytes for event in trace.device_events] == [mib(3), mib(8), mib(5), 0]
    assert (trace.lacks_totals, trace.memory_events) == (True, ())
    assert (measured.peaks.allocated_bytes, measured.peaks.reserved_bytes) == (mib(8), 0)
    assert [doubt.code for doubt in measured.doubts] == ["TOTALS_MISSING"]
    assert measured.peaks.text == (
        "measured on cuda:0, Tesla V100-SXM2-32GB with 32.00 GiB: the trace allocates 8.00 MiB at"
        " most"
    )


def test_what_is_freed_and_never_allocated_was_there_before() -> None:
    """Only that is known of older memory."""
    trace = _read(_memory(2, mib(3)), _memory(3, -mib(3)), _memory(4, -mib(3)), _memory(5, -mib(1)))
    (measured,) = measure(trace)

    assert [event.allocated_bytes for event in trace.device_events] == [mib(7), mib(4), mib(1), 0]
    assert "4.00 MiB of it was allocated before the trace" in measured.peaks.text


def test_devices_are_added_up_by_themselves() -> None:
    """A free on one is not of a block on another."""
    trace = _read(_memory(2, mib(3), 1), _memory(3, mib(3), 0), _memory(4, -mib(3), 1))

    assert [(one.device, one.allocated_bytes) for one in trace.device_events] == [
        (0, mib(3)),
        (1, mib(3)),
        (1, 0),
    ]


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=40))
def test_totals_are_never_negative(sizes: list[int]) -> None:
    """Whatever is freed; and the peak is at least that of the sums."""
    trace = _read(*(_memory(2 + at, size) for at, size in enumerate(sizes)))
    totals = [event.allocated_bytes for event in trace.device_events]

    assert min(totals) >= 0
    assert [later - one for one, later in pairwise(totals)] == sizes[1:]
    assert totals[0] >= sizes[0]


@pytest.mark.parametrize(
    ("event", "want_message"),
    [
        (_memory(2, None), "lacks 'ts' or 'Bytes'"),
        (_memory(2, 64) | {"ts": None}, "lacks 'ts' or 'Bytes'"),
        (_memory(2, 1 << 70), "has 1180591620717411303424 bytes"),
        (_memory(2, 64, **{"Total Allocated": 64}), "lacks 'ts', 'Addr', 'Bytes', 'Total Alloc"),
        (_memory(2, 64, -1), "'Device Id' of a [memory] event is -1: PyTorch numbers GPUs from 0"),
        (_memory(2, 64, 10**9), "'Device Id' of a [memory] event is 1000000000: PyTorch numbers"),
        (_memory(2, 64, -2, **{"Device Type": 0}), "and writes -1 for a CPU"),
        (_memory(2, 64, 128, **{"Device Type": 0}), "'Device Id' of a [memory] event is 128"),
        (_memory(2, 64, 10**4000), "'Device Id' of a [memory] event is 1000"),
        (_memory(2, 64, "cuda:0"), "Expected `int`, got `str`"),
    ],
)
def test_what_no_file_has_is_refused(event: dict[str, Any], want_message: str) -> None:
    """By the name of the field and its value."""
    with pytest.raises(TraceFormatError) as raised:
        _read(_memory(1, 64), event)

    assert want_message in raised.value.message
    assert len(raised.value.message) < 500


def test_sums_that_no_gpu_has_are_refused() -> None:
    """Sizes may be small, and their sum not."""
    with pytest.raises(TraceFormatError, match="in all"):
        _read(*(_memory(2 + at, 1 << 59) for at in range(20)))


def test_an_old_trace_of_a_cpu_is_refused() -> None:
    """Its memory events have no addresses, and what it would take on a GPU is not known."""
    with pytest.raises(UnsupportedTraceError, match="with an old PyTorch"):
        _read()


def test_totals_are_those_of_the_file() -> None:
    """Where it has them, nothing is added up."""
    trace = GpuTrace(before_bytes=mib(9))
    trace.alloc(0x1000, mib(1))
    read = trace.read()

    assert (read.lacks_totals, read.device_events[0].allocated_bytes) == (False, mib(10))
