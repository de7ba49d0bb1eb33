"""What the host computes for itself is left out of a trace that says so."""

from __future__ import annotations

from memgate.host_work import HOST_MARK, leave_out_host_work
from memgate.trace import Annotation, MemoryEvent, OpEvent, Trace


def _op(begin: float, end: float, name: str) -> OpEvent:
    return OpEvent(begin, end, 1, name, None, None, (), ())


def _trace(*annotations: Annotation) -> Trace:
    """A sample is made at 1, a batch at 11; the sample's address is used again at 31."""
    return Trace(
        memory_events=(
            MemoryEvent(1, 1, 0xA, 100),
            MemoryEvent(11, 1, 0xB, 400),
            MemoryEvent(21, 1, 0xA, -100),
            MemoryEvent(22, 1, 0xB, -400),
            MemoryEvent(31, 1, 0xA, 100),
            MemoryEvent(32, 1, 0xA, -100),
        ),
        ops=(_op(0, 5, "aten::randn"), _op(10, 15, "aten::to"), _op(30, 35, "aten::relu")),
        module_calls=(),
        annotations=annotations,
        notes={},
    )


def test_other_peoples_traces_stay_as_they_are() -> None:
    """There are no marks in them."""
    trace = _trace(Annotation(0, 5, "ProfilerStep#0"))

    assert leave_out_host_work(trace) is trace


def test_what_is_marked_goes_with_its_frees() -> None:
    """And what is made at the same address later stays."""
    kept = leave_out_host_work(_trace(Annotation(0, 6, HOST_MARK)))

    assert [op.name for op in kept.ops] == ["aten::to", "aten::relu"]
    assert [event.at_us for event in kept.memory_events] == [11, 22, 31, 32]


def test_an_address_that_is_allocated_again_is_the_devices() -> None:
    """Even if the free of the host's memory is not in the trace."""
    trace = _trace(Annotation(0, 6, HOST_MARK))
    trace = leave_out_host_work(
        Trace(
            memory_events=tuple(event for event in trace.memory_events if event.at_us != 21),
            ops=trace.ops,
            module_calls=(),
            annotations=trace.annotations,
            notes={},
        )
    )

    assert [event.at_us for event in trace.memory_events] == [11, 22, 31, 32]
