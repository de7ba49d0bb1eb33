"""Traces of a GPU: their own peaks are quoted, and a replay says what another GPU would do."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memgate.errors import InputError, UnsupportedTraceError
from memgate.gpus import GpuTarget, find_gpu
from memgate.measured import Measurement, doubt_reserved, measure, quote_peaks
from memgate.pipeline import estimate_timeline
from memgate.report import Estimate
from memgate.timeline import Alloc, Category, Free, Phase
from memgate.trace import Trace, read_trace
from memgate.units import GIB
from tests.builders import mib
from tests.gpu_traces import V100, GpuTrace


def _training(**options: Any) -> GpuTrace:
    """Train two steps: 100 MiB of activations, 50 of gradients."""
    trace = GpuTrace(**options)
    for _ in range(2):
        trace.iteration(activations=mib(100), gradients=mib(50))
    return trace


def _measure(trace: Trace) -> Measurement:
    """Measure a trace of one device."""
    (measured,) = measure(trace)
    return measured


def _estimate(measured: Measurement, gpu: str = "t4", used: int = 0) -> Estimate:
    target = GpuTarget(gpu=find_gpu(gpu), already_used_bytes=used)
    said = estimate_timeline(
        measured.timeline,
        target,
        engine="measured",
        runtime="",
        versions={},
        notes=measured.notes,
        doubts=[*measured.doubts, *doubt_reserved(measured.peaks, target)],
    )
    return quote_peaks(said, measured.peaks)


def test_the_peaks_of_the_file_are_the_peaks_of_the_answer() -> None:
    """Whatever a replay makes of its allocations; both are said."""
    trace = _training(before_bytes=mib(300), reserved_bytes=mib(900))

    said = _estimate(_measure(trace.read()))

    assert said.decision == "admit"
    assert said.peak_reserved_bytes == said.peak_reserved_on_gpu_bytes == mib(900)
    assert said.peak_allocated_bytes == mib(450)
    assert sum(said.breakdown.values()) == said.peak_bytes
    assert said.breakdown["parameters"] == mib(300)
    assert said.why("MEASURED_PEAK") == (
        "measured on cuda:0, Tesla V100-SXM2-32GB with 32.00 GiB: 900.00 MiB reserved and 450.00"
        " MiB allocated at most; 300.00 MiB of it was allocated before the trace and is shown as"
        " parameters; a replay of its events reserves 450.00 MiB"
    )


def test_a_replay_that_agrees_is_not_mentioned() -> None:
    """There is one figure then."""
    trace = _training()

    text = _estimate(_measure(trace.read(deviceProperties=[]))).why("MEASURED_PEAK")

    assert text == "measured on cuda:0: 150.00 MiB reserved and 150.00 MiB allocated at most"


def test_blocks_have_layers_categories_and_phases() -> None:
    """From the operators of the same file."""
    timeline = _measure(_training(before_bytes=mib(1)).read()).timeline

    labels = [(label.category, label.layer) for label in timeline.labels]
    assert labels[:3] == [
        (Category.PARAMETERS, ""),
        (Category.ACTIVATIONS, "Linear_0"),
        (Category.GRADIENTS, "Linear_0"),
    ]
    assert [start.phase for start in timeline.phases][:3] == [
        Phase.FORWARD,
        Phase.BACKWARD,
        Phase.OPTIMIZER,
    ]


def test_memory_from_before_the_trace_that_is_freed_in_it_is_freed() -> None:
    """Gradients of the step before, as a rule; the rest is one block."""
    trace = GpuTrace(before_bytes=mib(30))
    trace.free(0x9000, mib(10))
    trace.alloc(0x9000, mib(4))

    timeline = _measure(trace.read()).timeline

    assert timeline.events == (
        Alloc(0, mib(10)),
        Alloc(1, mib(20)),
        Free(0),
        Alloc(2, mib(4)),
    )
    assert timeline.diagnostics["free_of_older"] == 1


def test_events_are_taken_in_the_order_of_time() -> None:
    """A file tells them thread by thread."""
    trace = GpuTrace()
    trace.alloc(0x1000, mib(1))
    trace.free(0x1000)
    trace.alloc(0x1000, mib(2))
    trace.events.reverse()

    events = _measure(trace.read()).timeline.events

    assert events == (Alloc(0, mib(1)), Free(0), Alloc(1, mib(2)))


def test_odd_events_are_counted() -> None:
    """An address twice, another size, nothing at all."""
    trace = GpuTrace()
    trace.alloc(0x1000, 512)
    trace.alloc(0x1000, 1024)
    trace.alloc(0x2000, 0)
    trace.free(0x1000, 512)
    trace.free(0x1000, 512)

    timeline = _measure(trace.read()).timeline

    assert timeline.events == (Alloc(0, 512), Free(0), Alloc(1, 1024), Free(1))
    odd = {name: count for name, count in timeline.diagnostics.items() if count}
    assert odd == {"free_not_seen": 1, "no_bytes": 1, "other_size": 1}


def test_events_that_are_missing_are_a_doubt_and_count_as_memory() -> None:
    """A file whose totals know more than its events."""
    trace = _training()
    trace.events[2]["args"]["Total Allocated"] = mib(400)

    measured = _measure(trace.read())
    said = _estimate(measured)

    assert (said.decision, said.reasons[0].code) == ("uncertain", "TRACE_UNEXPLAINED")
    assert "differ by up to 300.00 MiB" in said.reasons[0].message
    assert said.peak_allocated_bytes == mib(400)
    assert said.required_bytes >= mib(400)


def test_what_was_reserved_is_held_against_a_gpu() -> None:
    """A replay that fits does not admit what did not fit as it was."""
    measured = _measure(_training(reserved_bytes=15 * GIB).read())

    said = _estimate(measured, "t4")

    assert (said.decision, said.reasons[0].code) == ("uncertain", "RESERVED_DOES_NOT_FIT")
    assert "had 15.00 GiB reserved when it was measured" in said.reasons[0].message
    assert said.peak_reserved_bytes == 15 * GIB
    assert said.peak_reserved_on_gpu_bytes < GIB
    assert "t4" not in said.fits_on
    assert "a100-40" in said.fits_on
    assert _estimate(measured, "a100-40").decision == "admit"


def test_a_gpu_like_the_one_it_ran_on_is_not_doubted() -> None:
    """There, it fitted; where others use some of it, nobody knows."""
    measured = _measure(_training(reserved_bytes=31 * GIB + mib(500)).read())

    assert _estimate(measured, "v100-32").decision == "admit"
    assert _estimate(measured, "v100-32", used=GIB).reasons[0].code == "RESERVED_DOES_NOT_FIT"


def test_a_replay_that_needs_more_than_the_job_had_does_not_reject_it() -> None:
    """Every third block stays: its segment is lost unless segments can expand."""
    trace = GpuTrace()
    for number in range(2048):
        trace.alloc(number, mib(6))
    for number in range(2048):
        if number % 3:
            trace.free(number)
    for number in range(270):
        trace.alloc(5000 + number, mib(30))

    said = _estimate(_measure(trace.read()), "t4")

    assert (said.decision, said.reasons[0].code) == ("uncertain", "REPLAY_NEEDS_MORE")
    message = said.reasons[0].message
    assert "ran with 12.00 GiB reserved, which fits, and its replay needs 21." in message


def test_what_cannot_fit_is_rejected() -> None:
    """Allocated memory is needed, whatever the allocator does."""
    measured = _measure(_training(before_bytes=20 * GIB).read())

    said = _estimate(measured, "t4")

    assert (said.decision, said.reasons[0].code) == ("reject", "DOES_NOT_FIT")
    assert said.oom is not None


def _two_devices() -> Trace:
    trace = GpuTrace()
    trace.alloc(0x1000, mib(100), device=0)
    trace.alloc(0x2000, mib(300), device=1)
    trace.alloc(0x3000, mib(50), device=0)
    trace.events[2]["args"]["Total Reserved"] = 3 * GIB
    return trace.read(deviceProperties=[V100, V100 | {"id": 1, "name": "B"}])


def test_each_of_several_devices_is_measured() -> None:
    """With its own events, peaks and GPU."""
    first, second = measure(_two_devices())

    assert (first.device, second.device) == (0, 1)
    assert (first.peaks.allocated_bytes, second.peaks.allocated_bytes) == (mib(150), mib(300))
    assert (first.peaks.reserved_bytes, second.peaks.reserved_bytes) == (3 * GIB, mib(300))
    assert (len(first.timeline.events), len(second.timeline.events)) == (2, 1)
    assert second.peaks.text == (
        "measured on cuda:1, B with 32.00 GiB: 300.00 MiB reserved and 300.00 MiB allocated at most"
    )


def test_one_of_several_devices_is_picked() -> None:
    """By its number; others are not in the answer, and what is not there is named."""
    assert [one.device for one in measure(_two_devices(), device=1)] == [1]
    with pytest.raises(InputError, match=r"device 2 is not in the trace, .* are in it: 0, 1"):
        list(measure(_two_devices(), device=2))


def test_one_process_of_many_is_not_admitted() -> None:
    """The others may take more, and NCCL takes some beside the allocator."""
    measured = _measure(_training().read(distributedInfo={"world_size": 8}))

    assert [doubt.code for doubt in measured.doubts] == ["DISTRIBUTED"]
    assert "(8 processes)" in measured.doubts[0].message
    assert _estimate(measured).decision == "uncertain"


@pytest.mark.parametrize("world_size", [1, 4])
def test_a_distributed_job_is_known_by_what_it_calls(world_size: int) -> None:
    """Sharded over processes that the file does not count, say."""
    trace = _training()
    trace.add(cat="user_annotation", name="FSDP::pre_forward", ph="X", dur=1)

    (doubt,) = _measure(trace.read(distributedInfo={"world_size": world_size})).doubts

    assert doubt.code == "DISTRIBUTED"
    assert "fully_shard (FSDP2)" in doubt.message


def test_flags_that_cost_only_layers_are_a_note() -> None:
    """The peak is known without them."""
    trace = _training()
    trace.events = [one for one in trace.events if one["cat"] != "python_function"]

    measured = _measure(trace.read())

    assert measured.doubts == ()
    assert [note.code for note in measured.notes] == ["TRACE_FLAGS_MISSING"]


def test_without_operators_nobody_can_tell_what_was_trained() -> None:
    """Memory events alone are answered, and doubted."""
    trace = GpuTrace()
    trace.alloc(0x1000, mib(1))

    measured = _measure(trace.read())

    assert [doubt.code for doubt in measured.doubts] == ["TRACE_FLAGS_MISSING"]
    assert measured.notes == ()


_ODD = st.one_of(
    st.none(), st.integers(-(2**70), 2**70), st.text(max_size=3), st.floats(allow_nan=False)
)
_NAMES = ("Addr", "Bytes", "Total Allocated", "Total Reserved", "Device Id", "Device Type")


@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from(_NAMES), _ODD), max_size=6))
@settings(max_examples=100, deadline=None)
def test_a_broken_trace_is_an_error_or_an_answer(mutations: list[tuple[int, str, Any]]) -> None:
    """Dropped fields, wrong types, huge and negative numbers."""
    trace = _training(before_bytes=mib(3))
    for position, name, value in mutations:
        event = trace.events[position % len(trace.events)]
        event["args"] = event.get("args", {}) | {name: value}

    try:
        found = read_trace(io.BytesIO(json.dumps({"traceEvents": trace.events}).encode()))
    except (InputError, UnsupportedTraceError):
        return

    for measured in measure(found):
        said = _estimate(measured)
        assert sum(said.breakdown.values()) == said.peak_bytes


@pytest.mark.parametrize("setting", ["", "expandable_segments:True"])
def test_other_settings_of_the_allocator_are_replayed(setting: str) -> None:
    """The peak that was stays what it was."""
    measured = _measure(_training(reserved_bytes=GIB).read())
    target = GpuTarget(gpu=find_gpu("t4"))

    said = estimate_timeline(
        measured.timeline,
        target,
        alloc_conf=setting,
        engine="measured",
        runtime="",
        versions={},
    )

    assert quote_peaks(said, measured.peaks).peak_reserved_bytes == GIB
