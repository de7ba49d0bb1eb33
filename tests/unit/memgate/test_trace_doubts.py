"""What takes the plain admit away from a trace: a real trace, changed a little."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.replay import replay
from memgate.blocks import pair_blocks
from memgate.capacity import AMPLE_BYTES
from memgate.errors import TraceFormatError
from memgate.links import link_blocks
from memgate.phases import find_optimizers
from memgate.pipeline import analyze
from memgate.plan import DeviceTraits
from memgate.repetition import Repeated
from memgate.residents import Residents
from memgate.trace import Annotation, MemoryEvent, OpEvent, Trace, read_trace
from memgate.trace_doubts import find_trace_doubts
from memgate.weights import Frozen

AMPERE = DeviceTraits(compute_capability=(8, 0))
STYLES = Path(__file__).parents[2] / "data" / "styles"


def _read(name: str = "mlp.tutorial") -> Trace:
    with (STYLES / f"{name}.json.gz").open("rb") as stream:
        return read_trace(stream)


def _doubts(trace: Trace) -> list[str]:
    return [doubt.code for doubt in analyze(trace, AMPERE).doubts]


def _with_op(name: str) -> Callable[[Trace], Trace]:
    """Put an operator around the first forward pass and backward pass, with all they allocate."""

    def change(trace: Trace) -> Trace:
        first = next(op for op in trace.ops if op.name == "aten::linear")
        begin_us, end_us = first.begin_us - 1, _first_step_end(trace)
        op = OpEvent(begin_us, end_us, first.thread, name, None, None, (), ())
        return replace(trace, ops=(*trace.ops, op))

    return change


def _with_note(name: str) -> Callable[[Trace], Trace]:
    def change(trace: Trace) -> Trace:
        begin = trace.ops[0].begin_us
        return replace(trace, annotations=(*trace.annotations, Annotation(begin, begin + 1, name)))

    return change


def _with_optimizer(name: str) -> Callable[[Trace], Trace]:
    def change(trace: Trace) -> Trace:
        notes = tuple(
            Annotation(note.begin_us, note.end_us, note.name.replace("Adam", name))
            for note in trace.annotations
        )
        return replace(trace, annotations=notes)

    return change


def _with_a_data_set(trace: Trace) -> Trace:
    """Let a batch be taken out of something large."""
    first = trace.ops[0]
    dims, types = ((60_000, 3, 32, 32),), ("float",)
    op = OpEvent(first.begin_us - 2, first.begin_us - 1, 1, "aten::index", None, None, dims, types)
    return replace(trace, ops=(op, *trace.ops))


def _without_steps(trace: Trace) -> Trace:
    return replace(trace, annotations=())


def _without_backward(trace: Trace) -> Trace:
    kept = tuple(op for op in trace.ops if op.forward_thread is None and "autograd" not in op.name)
    return replace(trace, ops=kept, annotations=())


def _first_step_end(trace: Trace) -> float:
    return min(note.end_us for note in trace.annotations if "Optimizer.step" in note.name)


def _with_larger_second(trace: Trace) -> Trace:
    """Let everything be twice as large that the second iteration allocates."""
    end_us = _first_step_end(trace)
    later = {event.address for event in trace.memory_events if event.at_us > end_us}
    later -= {event.address for event in trace.memory_events if event.at_us <= end_us}
    events = tuple(
        MemoryEvent(event.at_us, event.thread, event.address, 2 * event.size_bytes)
        if event.address in later
        else event
        for event in trace.memory_events
    )
    return replace(trace, memory_events=events)


def _with_a_leak(trace: Trace) -> Trace:
    """Let each forward pass leave something behind."""
    layers = [op for op in trace.ops if op.name == "aten::linear"]
    leaks = [
        MemoryEvent(op.begin_us + 0.01, op.thread, 1 + number, 50_000_000)
        for number, op in enumerate(layers)
    ]
    return replace(trace, memory_events=(*trace.memory_events, *leaks))


@pytest.mark.parametrize(
    ("change", "want"),
    [
        (_with_op("c10d::allreduce_"), "DISTRIBUTED"),
        (_with_note("DistributedDataParallel.forward"), "DISTRIBUTED"),
        (_with_note("FullyShardedDataParallel.forward"), "DISTRIBUTED"),
        (_with_note("Torch-Compiled Region: 0/0"), "COMPILED"),
        (_with_op("CompiledFunctionBackward"), "COMPILED"),
        (_with_op("xformers::attention"), "CUSTOM_OPERATORS"),
        (_with_optimizer("Lion"), "OPTIMIZER_STATE_UNKNOWN"),
        (_with_optimizer("Adafactor"), "OPTIMIZER_STATE_UNKNOWN"),
        (_with_a_data_set, "OLDER_DATA_READ"),
        (_without_steps, "NO_OPTIMIZER_STEP"),
        (_without_backward, "INFERENCE_ONLY"),
        (_with_larger_second, "SHAPES_VARY"),
        (_with_a_leak, "STILL_GROWING"),
    ],
)
def test_nothing_is_admitted_in_silence(change: Callable[[Trace], Trace], want: str) -> None:
    """Of a job whose memory on a GPU is not known, or that the trace shows in part."""
    assert want in _doubts(change(_read()))


def test_an_operator_of_others_that_allocates_nothing_is_no_doubt() -> None:
    """It may be any small helper."""
    trace = _read()
    end = max(op.end_us for op in trace.ops)
    op = OpEvent(end + 1, end + 2, 1, "mine::look", None, None, (), ())

    assert _doubts(replace(trace, ops=(*trace.ops, op))) == []


def test_an_optimizer_that_wraps_another_is_seen_through() -> None:
    """The wrapped one is at work, and a step is counted once."""
    trace = _read()
    wrapped = tuple(
        Annotation(note.begin_us - 0.5, note.end_us + 0.5, "Optimizer.step#Wrapper.step")
        for note in trace.annotations
        if "Optimizer.step" in note.name
    )
    plain = analyze(trace, AMPERE)

    found = analyze(replace(trace, annotations=(*trace.annotations, *wrapped)), AMPERE)

    assert found.doubts == ()
    assert len(found.timeline.events) == len(plain.timeline.events)


def test_what_was_added_is_said() -> None:
    """In a note: nothing was wrong."""
    (note, evaluation, flags) = analyze(_read(), AMPERE).notes

    assert note.code == "OLDER_ADDED"
    assert "parameters and buffers (16.05 MiB), optimizer state (32.09 MiB)" in note.message
    assert evaluation.code == "EVALUATION_UNSEEN"
    assert flags.code == "TRACE_FLAGS_MISSING"


def test_a_trace_that_tells_everything_needs_no_note() -> None:
    """The model was made inside, or is written down; and there is an evaluation, or none at all."""
    trace = replace(_read("evaluation.epoch"), missing_flags=())
    ours = replace(_read("mlp.inside"), missing_flags=(), notes={"model_bytes": []})

    assert "EVALUATION_UNSEEN" not in [note.code for note in analyze(trace, AMPERE).notes]
    assert analyze(ours, AMPERE).notes == ()


def test_a_trace_of_training_alone_says_so() -> None:
    """Nothing else needs a note where the model was made inside."""
    trace = replace(_read("mlp.inside"), missing_flags=())

    assert [note.code for note in analyze(trace, AMPERE).notes] == ["EVALUATION_UNSEEN"]


def test_a_trace_that_begins_in_the_middle_of_an_iteration_is_completed() -> None:
    """What is left of the first iteration is not taken for a whole one."""
    trace = _read("mlp.two")
    whole = analyze(trace, AMPERE).timeline
    backward = [op.begin_us for op in trace.ops if op.name.startswith("autograd::")]
    first_us = min(backward) - 1
    late = replace(
        trace,
        ops=tuple(op for op in trace.ops if op.begin_us > first_us),
        memory_events=tuple(event for event in trace.memory_events if event.at_us > first_us),
    )

    found = analyze(late, AMPERE)

    peaks = [
        replay(timeline, parse_alloc_conf(""), AMPLE_BYTES).peak_allocated_bytes
        for timeline in (whole, found.timeline)
    ]
    assert peaks[1] == pytest.approx(peaks[0], rel=0.01)


def test_what_follows_the_last_step_is_not_another_iteration() -> None:
    """A trace ends where its profiler was stopped."""
    trace = _read("mlp.two")
    last_us = max(note.end_us for note in trace.annotations)
    late = MemoryEvent(last_us + 5, trace.ops[0].thread, 1, 999)

    found = analyze(replace(trace, memory_events=(*trace.memory_events, late)), AMPERE)

    assert 999 not in [getattr(event, "size_bytes", 0) for event in found.timeline.events]


def test_weights_that_may_be_tied_are_a_doubt() -> None:
    """Unless they are next to nothing beside the model."""
    trace = _read()
    linked = link_blocks(pair_blocks(trace), trace)

    def find(tied_bytes: int) -> list[str]:
        residents = Residents(model=(1000,), frozen=Frozen(maybe_tied_bytes=tied_bytes))
        doubts = find_trace_doubts(
            trace, linked, residents, Repeated(linked=linked, num_iterations=2)
        )
        return [doubt.code for doubt in doubts]

    assert find(500) == ["TIED_WEIGHTS_UNKNOWN"]
    assert find(5) == []


def test_sizes_that_no_memory_has_are_refused() -> None:
    """By their field, not by a failure of arithmetic."""
    trace = _read()
    absurd = tuple(
        msgspec.structs.replace(op, input_dims=tuple((2**40,) * 3 for _ in op.input_dims))
        for op in trace.ops
    )
    many = tuple(
        MemoryEvent(event.at_us, event.thread, event.address, event.size_bytes * 2**36)
        for event in trace.memory_events
    )

    with pytest.raises(TraceFormatError, match="has a size that no memory has"):
        analyze(replace(trace, ops=absurd), AMPERE)
    with pytest.raises(TraceFormatError, match="more than any memory could ever hold"):
        analyze(replace(trace, memory_events=many), AMPERE)


def test_a_step_that_takes_no_time_is_a_step() -> None:
    """Its optimizer has a name all the same."""
    notes = [Annotation(5, 5, "Optimizer.step#Adam.step")]

    assert find_optimizers(notes) == ["Adam"]


def test_an_optimizer_that_is_not_modelled_is_doubted_from_its_first_step_on() -> None:
    """Its state may be seen, but not what its steps make on a GPU."""
    seen = _read("mlp.inside")

    assert _doubts(seen) == []
    assert _doubts(_with_optimizer("LBFGS")(seen)) == ["OPTIMIZER_STATE_UNKNOWN"]
    assert _doubts(_with_optimizer("Lion")(seen)) == []
