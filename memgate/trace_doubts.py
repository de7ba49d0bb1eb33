"""A CPU trace, as far as it was understood -> what takes the plain admit away, and what to know.

Each reason has a code of its own, and says what to record instead. What could not be tied together
is counted by the stages and judged in ``doubts``; here is what a trace does not show, or shows of a
job whose memory on a GPU is not known.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from memgate.job_kinds import doubt_kinds
from memgate.links import BACKWARD_PREFIX, LinkedSet
from memgate.older_data import doubt_older_data
from memgate.phases import find_steps
from memgate.repetition import Repeated
from memgate.report import Reason
from memgate.residents import MODEL_NOTE, Residents
from memgate.timeline import Phase
from memgate.trace import Trace, tell_missing_flags
from memgate.units import format_size
from memgate.whole_steps import doubt_steps

#: of what an iteration allocates; less is next to nothing
_MUCH = 0.01

#: of a forward pass: among them a model of sequences looks up its tokens
_FIRST_CALLS = 12

_TWO_STEPS = "record two whole training steps or more"


def find_trace_doubts(
    trace: Trace, linked: LinkedSet, residents: Residents, repeated: Repeated
) -> Iterator[Reason]:
    """Yield why a job is not admitted upon a trace."""
    if not repeated.num_iterations:
        yield from doubt_steps(trace, [], 0)
    yield from _doubt_iterations(linked, residents, repeated)
    yield from _doubt_hooks(trace)
    yield from _doubt_residents(residents)
    yield from doubt_kinds(trace, linked)
    yield from doubt_older_data(trace, linked, residents)


def find_trace_notes(trace: Trace, residents: Residents, repeated: Repeated) -> Iterator[Reason]:
    """Yield what is worth knowing about an answer that a trace gave."""
    added = {
        "parameters and buffers": (*residents.model,),
        "gradients": residents.gradients,
        "optimizer state": (*residents.kept, *residents.state),
    }
    told = [f"{name} ({format_size(sum(sizes))})" for name, sizes in added.items() if sizes]
    if told:
        yield Reason(
            code="OLDER_ADDED",
            message=f"older than the trace, and added: {', '.join(told)}",
        )
    # in the traces that memgate makes, an evaluation is recorded if there is one
    is_ours = MODEL_NOTE in trace.notes
    if repeated.num_iterations and not repeated.has_evaluation and not is_ours:
        yield Reason(
            code="EVALUATION_UNSEEN",
            message="the trace shows training alone: if the job evaluates, with larger batches say,"
            " that may take more; record it, too",
        )
    if trace.missing_flags:
        yield Reason(code="TRACE_FLAGS_MISSING", message=tell_missing_flags(trace.missing_flags))


def _doubt_iterations(
    linked: LinkedSet, residents: Residents, repeated: Repeated
) -> Iterator[Reason]:
    is_only_one = repeated.num_iterations == 1
    if is_only_one and not residents.is_started:
        yield Reason(
            code="FIRST_STEP_ONLY",
            message="only one step was recorded, and it may be the job's first: whether gradients"
            f" stay between steps is not known; {_TWO_STEPS}",
        )
    if is_only_one and _reads_sequences(linked):
        yield Reason(
            code="LENGTHS_UNSEEN",
            message="only one batch of sequences was recorded, and others may be longer;"
            f" {_TWO_STEPS}",
        )
    if repeated.is_varied:
        yield Reason(
            code="SHAPES_VARY",
            message="the iterations are not of the same size; the largest one that was recorded"
            " counts, and others may be larger: record the largest batch",
        )
    if repeated.growth_bytes > _MUCH * repeated.size_bytes:
        yield Reason(
            code="STILL_GROWING",
            message=f"each iteration leaves {format_size(repeated.growth_bytes)} behind for good:"
            " memory grows with every step; look for what keeps tensors, such as a sum of losses",
        )


def _doubt_hooks(trace: Trace) -> Iterator[Reason]:
    """Doubt steps that are part of the backward pass: iterations then do not end with a step."""
    nodes = sorted(
        (op.begin_us, op.end_us) for op in trace.ops if op.name.startswith(BACKWARD_PREFIX)
    )
    begins = [begin_us for begin_us, _ in nodes]
    for step in find_steps(trace.annotations):
        at = bisect_right(begins, step.begin_us) - 1
        if at >= 0 and step.end_us <= nodes[at][1]:
            yield Reason(
                code="STEPS_IN_BACKWARD",
                message="parameters are stepped within the backward pass, by hooks, so that each"
                " gradient goes before the next one comes: this is not modelled; a trace or a"
                " memory snapshot of it on a GPU has the figure",
            )
            return


def _reads_sequences(linked: LinkedSet) -> bool:
    """Say whether the model begins with an embedding of tokens."""
    passing = (call.op for call in linked.calls if call.phase is Phase.FORWARD)
    firsts = [op for op, _ in zip(passing, range(_FIRST_CALLS), strict=False)]
    return any(op.name == "aten::embedding" for op in firsts)


def _doubt_residents(residents: Residents) -> Iterator[Reason]:
    frozen, stepped = residents.frozen, residents.stepped
    if stepped.copies:
        yield Reason(
            code="OTHER_PARAMETERS",
            message="the optimizer steps other tensors than the backward pass makes gradients for,"
            f" such as copies of the weights in full precision ({format_size(sum(stepped.copies))},"
            " added); how they were made is not known",
        )
    elif stepped.is_unclear:
        yield Reason(
            code="OTHER_PARAMETERS",
            message="the optimizer steps other tensors than the backward pass makes gradients for,"
            " such as copies of the weights in full precision, and without record_shapes=True their"
            " sizes are not known; record with record_shapes=True",
        )
    if residents.is_state_unknown:
        yield Reason(
            code="OPTIMIZER_STATE_UNKNOWN",
            message="what the optimizer keeps, or makes for a moment on a GPU, is not known; if it"
            " is not one of torch.optim, or there are several kinds, record from the first step on",
        )
    if frozen.is_unseen:
        yield Reason(
            code="FROZEN_WEIGHTS_UNSEEN",
            message="some weights are not trained, and without record_shapes=True their sizes are"
            " not known; record with record_shapes=True",
        )
    if frozen.maybe_tied_bytes > _MUCH * sum(residents.model):
        yield Reason(
            code="TIED_WEIGHTS_UNKNOWN",
            message="an embedding that is not trained"
            f" ({format_size(frozen.maybe_tied_bytes)}) and a layer of its size are taken to share"
            " their weight; if they do not, the job needs that much more: record the making of the"
            " model, too",
        )
