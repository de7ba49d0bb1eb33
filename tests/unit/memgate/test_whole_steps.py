"""Whether a trace shows a whole step of training."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from memgate.measured import measure
from memgate.report import Reason
from memgate.whole_steps import INFERENCE_ONLY, settle_inference
from tests.builders import mib
from tests.gpu_traces import GpuTrace


def _nothing(trace: GpuTrace) -> None:
    with trace.op("aten::empty"):
        trace.alloc(0x1000, mib(1))


def _forward(trace: GpuTrace) -> None:
    with trace.forward():
        trace.alloc(0x1000, mib(1))


def _backward(trace: GpuTrace) -> None:
    with trace.backward():
        trace.alloc(0x2000, mib(1))


def _step(trace: GpuTrace) -> None:
    with trace.step():
        trace.alloc(0x3000, 512)


def _first_step(trace: GpuTrace) -> None:
    """Make state that stays."""
    with trace.step():
        trace.alloc(0x4000, mib(2))


@pytest.mark.parametrize(
    ("parts", "want_doubts"),
    [
        ([_forward, _backward, _step], []),
        ([_backward, _step, _forward, _backward, _step], []),
        ([_backward, _step, _forward, _backward], ["PART_OF_A_STEP"]),
        ([_nothing], ["INFERENCE_ONLY"]),
        ([_forward], ["INFERENCE_ONLY"]),
        ([_forward, _backward], ["NO_OPTIMIZER_STEP"]),
        ([_forward, _step], ["PART_OF_A_STEP"]),
        ([_step, _forward, _backward], ["PART_OF_A_STEP"]),
        ([_backward, _step], ["PART_OF_A_STEP"]),
        ([_forward, _backward, _first_step], ["PART_OF_A_STEP"]),
        ([_forward, _backward, _first_step, _forward, _backward, _step], []),
        ([_forward, _backward, _first_step, _forward, _backward], []),
    ],
)
def test_a_trace_without_a_whole_step_is_doubted(
    parts: list[Callable[[GpuTrace], None]], want_doubts: list[str]
) -> None:
    """Forward pass, backward pass and step, in this order; and state is needed from then on."""
    trace = GpuTrace()
    for part in parts:
        part(trace)

    assert [doubt.code for doubt in next(measure(trace.read())).doubts] == want_doubts


def test_state_of_the_last_step_is_named() -> None:
    """The next iteration needs it, too."""
    trace = GpuTrace()
    for part in (_forward, _backward, _first_step):
        part(trace)

    (doubt,) = next(measure(trace.read())).doubts

    assert "makes 2.00 MiB of state at the end of the trace" in doubt.message


_OTHER = Reason(code="TRACE_UNEXPLAINED", message="too much")
_INFERENCE = Reason(code=INFERENCE_ONLY, message="no backward pass")


@pytest.mark.parametrize(
    ("doubts", "is_asked", "want_doubts", "want_notes"),
    [
        ([_INFERENCE, _OTHER], False, [INFERENCE_ONLY, "TRACE_UNEXPLAINED"], ["A"]),
        ([_INFERENCE, _OTHER], True, ["TRACE_UNEXPLAINED"], ["A", INFERENCE_ONLY]),
        ([_OTHER], True, ["TRACE_UNEXPLAINED"], ["A"]),
        ([], True, [], ["A"]),
    ],
)
def test_inference_is_a_doubt_unless_it_is_asked_about(
    doubts: list[Reason], is_asked: bool, want_doubts: list[str], want_notes: list[str]
) -> None:
    """Other doubts stay, and the reason is told in either case."""
    notes = [Reason(code="A", message="a note")]

    found = settle_inference(doubts, notes, is_asked=is_asked)

    assert [[one.code for one in reasons] for reasons in found] == [want_doubts, want_notes]
