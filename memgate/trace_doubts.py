"""A CPU trace, as far as it was understood -> what takes the plain admit away, and what to know.

Each reason has a code of its own, and says what to record instead. What could not be tied together
is counted by the stages and judged in ``doubts``; here is what a trace does not show, or shows of a
job whose memory on a GPU is not known.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator

from memgate.links import LinkedSet
from memgate.phases import find_outermost
from memgate.repetition import Repeated
from memgate.report import Reason
from memgate.residents import Residents
from memgate.timeline import Phase
from memgate.trace import Trace, tell_missing_flags
from memgate.units import format_size
from memgate.weights import SCALAR_BYTES, input_bytes
from memgate.whole_steps import doubt_steps

#: of what an iteration allocates; less is next to nothing
_MUCH = 0.01

_RECURRENT = frozenset({"aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu"})

#: what only a distributed job calls, and what people call it
_DISTRIBUTED = {
    "DistributedDataParallel": "DistributedDataParallel (DDP)",
    "FullyShardedDataParallel": "FullyShardedDataParallel (FSDP)",
    "FSDP::": "fully_shard (FSDP2)",
    "c10d::": "torch.distributed",
    "gloo:": "torch.distributed with gloo",
    "nccl:": "torch.distributed with NCCL",
    "record_param_comms": "torch.distributed",
}
_COMPILED = ("Torch-Compiled Region", "CompiledFunction", "TorchDynamo", "## Call CompiledFxGraph")

#: namespaces of operators that PyTorch has itself
_OURS = frozenset(
    {"aten", "autograd", "c10d", "prim", "prims", "profiler", "torch", "inductor", "rng_prims"}
)

#: of a forward pass: among them a model of sequences looks up its tokens
_FIRST_CALLS = 12

#: read some of a tensor
_READ_PARTS = frozenset(
    f"aten::{name}" for name in ("gather", "index", "index_select", "narrow", "select", "slice")
)

_TWO_STEPS = "record two whole training steps or more"
_ON_A_GPU = "a trace or a memory snapshot of it on a GPU has the figure"


def find_trace_doubts(
    trace: Trace, linked: LinkedSet, residents: Residents, repeated: Repeated
) -> Iterator[Reason]:
    """Yield why a job is not admitted upon a trace."""
    if not repeated.num_iterations:
        yield from doubt_steps(trace, [], 0)
    yield from _doubt_iterations(linked, residents, repeated)
    yield from _doubt_residents(residents)
    yield from _doubt_kinds(trace, linked)
    if unseen := _find_unseen(linked, residents):
        yield Reason(
            code="OLDER_DATA_READ",
            message=f"the job reads parts of {format_size(unseen)} that are older than the trace,"
            " such as a data set: if they are on the GPU, it needs that much more; record the"
            " making of it, too",
        )
    if "record_shapes=True" in trace.missing_flags and not _shows_batch(linked):
        yield Reason(
            code="BATCH_UNSEEN",
            message="the batch was not made while the profiler recorded, and without"
            " record_shapes=True its size is not known; record with record_shapes=True",
        )


def find_trace_notes(trace: Trace, residents: Residents) -> Iterator[Reason]:
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


def _reads_sequences(linked: LinkedSet) -> bool:
    """Say whether the model begins with an embedding of tokens."""
    passing = (call.op for call in linked.calls if call.phase is Phase.FORWARD)
    firsts = [op for op, _ in zip(passing, range(_FIRST_CALLS), strict=False)]
    return any(op.name == "aten::embedding" for op in firsts)


def _doubt_residents(residents: Residents) -> Iterator[Reason]:
    frozen = residents.frozen
    if residents.is_state_unknown:
        yield Reason(
            code="OPTIMIZER_STATE_UNKNOWN",
            message="what this optimizer keeps, or makes for a moment on a GPU, is not known;"
            " record from the first step on if it is not one of torch.optim",
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


def _doubt_kinds(trace: Trace, linked: LinkedSet) -> Iterator[Reason]:
    """Doubt jobs whose memory on a GPU is not known."""
    names = {op.name for op in trace.ops} | {note.name for note in trace.annotations}
    if found := sorted(names & _RECURRENT):
        yield Reason(
            code="RECURRENT_LAYERS",
            message=f"{', '.join(found)}: on a GPU cuDNN runs recurrent layers, and what it keeps"
            f" for them is not known; {_ON_A_GPU}",
        )
    if told := {said for begin, said in _DISTRIBUTED.items() if _any_begins(names, (begin,))}:
        yield Reason(
            code="DISTRIBUTED",
            message=f"the job is distributed ({', '.join(sorted(told))}): what it keeps for"
            f" communication differs on GPUs, and the trace is of one process; {_ON_A_GPU}",
        )
    if _any_begins(names, _COMPILED):
        yield Reason(
            code="COMPILED",
            message="the job uses torch.compile, which makes other code for a GPU: what it"
            " allocates there is not known; record it without torch.compile",
        )
    if custom := _find_custom(trace, linked):
        yield Reason(
            code="CUSTOM_OPERATORS",
            message=f"what {', '.join(custom[:5])} allocates on a GPU is not known; {_ON_A_GPU}",
        )


def _any_begins(names: Iterable[str], begins: tuple[str, ...]) -> bool:
    return any(name.startswith(begins) for name in names)


def _find_custom(trace: Trace, linked: LinkedSet) -> list[str]:
    """Return operators of others that allocate more than next to nothing."""
    names = frozenset(filter(_is_custom, {op.name for op in trace.ops}))
    if not names:
        return []
    others = (op for op in trace.ops if op.name in names)
    blocks = sorted((one.block.alloc_us, one.block.size_bytes) for one in linked.blocks)
    moments = [at_us for at_us, _ in blocks]
    total = sum(size for _, size in blocks)
    sizes: dict[str, int] = {}
    for op in find_outermost(sorted(others)):
        made = blocks[bisect_left(moments, op.begin_us) : bisect_right(moments, op.end_us)]
        sizes[op.name] = sizes.get(op.name, 0) + sum(size for _, size in made)
    return sorted(name for name, size in sizes.items() if size > _MUCH * total)


def _is_custom(name: str) -> bool:
    namespace, colons, _ = name.partition("::")
    return bool(colons) and namespace.isidentifier() and namespace not in _OURS


def _find_unseen(linked: LinkedSet, residents: Residents) -> int:
    """Return the size of the largest tensor that is read in parts and is nowhere else to be seen.

    Larger than every block and every weight, since a part of a part has any size.
    """
    read = max((input_bytes(op, 0) for op, *_ in linked.calls if op.name in _READ_PARTS), default=0)
    known = max((*(one.block.size_bytes for one in linked.blocks), *residents.model), default=0)
    return read if read > known else 0


def _shows_batch(linked: LinkedSet) -> bool:
    """Say whether something is made before a forward pass and outlives its beginning."""
    firsts = (call.op.begin_us for call in linked.calls if call.phase is Phase.FORWARD)
    begin_us = next(firsts, float("-inf"))
    return any(
        one.block.alloc_us < begin_us
        and (one.block.free_us is None or one.block.free_us > begin_us)
        for one in linked.blocks
        if one.call is not None
        and one.block.block_id not in linked.known
        and one.block.size_bytes > SCALAR_BYTES
    )
