"""Trace, LinkedSet -> the weights of the model: trained ones, others, buffers, and copies of them.

A trace does not list them. Those that are trained are found from their gradients; those that are
only read, from the shapes of the operators that read them and make no gradient for them; copies
that follow the weights, from what is written after each step.

Known limitations: without shapes, weights that are not trained leave no mark. A weight that is not
trained and read twice in one pass is counted twice where no modules were recorded.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from memgate.blocks import find_live_sizes
from memgate.errors import TraceFormatError
from memgate.links import ACCUMULATE, BACKWARD_PREFIX, LinkedSet
from memgate.timeline import MAX_SIZE_BYTES, Phase
from memgate.trace import OpEvent, Trace

_ITEM_BYTES = {
    "double": 8,
    "float": 4,
    "c10::Half": 2,
    "c10::BFloat16": 2,
    "c10::Float8_e4m3fn": 1,
    "c10::Float8_e5m2": 1,
    "c10::complex<float>": 8,
    "long int": 8,
    "long": 8,
    "int": 4,
    "short int": 2,
    "short": 2,
    "signed char": 1,
    "unsigned char": 1,
    "bool": 1,
}

#: where weights stand among the inputs of operators
_WEIGHTS = {
    "aten::addmm": (0, 2),
    "aten::batch_norm": (1, 2),
    "aten::bilinear": (2, 3),
    "aten::embedding": (0,),
    "aten::embedding_bag": (0,),
    "aten::group_norm": (2, 3),
    "aten::instance_norm": (1, 2),
    "aten::layer_norm": (2, 3),
    "aten::linear": (1, 2),
    "aten::prelu": (1,),
    "aten::rms_norm": (2,),
    **{f"aten::conv{kind}{n}d": (1, 2) for kind in ("", "_transpose") for n in (1, 2, 3)},
    "aten::convolution": (1, 2),
}

#: where the data stands, if it is not the first of the inputs
_DATA = {"aten::addmm": 1, "aten::embedding": 1, "aten::embedding_bag": 1}

#: a number as a tensor
SCALAR_BYTES = 8

#: of batch norm: where its statistics stand among the inputs, and what it counts batches with
_STATISTICS = (3, 4)
_COUNTER_BYTES = 8

#: of the backward pass, where a checkpoint's part of the forward pass runs for the second time
_WORKED_OUT_AGAIN = "CheckpointFunction"

#: write to a tensor what another one tells
_ON_LISTS = "aten::_foreach_lerp_"
_FOLLOWING = frozenset({"aten::lerp_", "aten::mul_", "aten::copy_", _ON_LISTS})

#: of the trained bytes, so much must be followed before it is a copy of the model
_MIN_FOLLOWED = 0.9


def input_bytes(op: OpEvent, at: int) -> int:
    """Return the size of an input of an operator; 0 if the trace does not tell.

    Raises:
        TraceFormatError: if it is larger than any memory.
    """
    if at >= len(op.input_dims) or at >= len(op.input_types):
        return 0
    size = prod(op.input_dims[at]) * _ITEM_BYTES.get(op.input_types[at], 0)
    if not 0 <= size <= MAX_SIZE_BYTES:
        raise TraceFormatError(f"an input of {op.name} has a size that no memory has")
    return size


def find_trained(trace: Trace, linked: LinkedSet) -> tuple[int, ...]:
    """Return the sizes of trained weights, in the order in which they are loaded.

    Gradients are made in the reverse of it (as the VeritasEst paper has it). Of several backward
    passes the one with most counts, and weights whose gradients only another pass makes are added.
    """
    passes = list(find_passes(trace, linked))
    alive = _gradients_alive(linked)
    if not any(map(sum, passes)):  # no shapes
        return tuple(reversed(alive or _gradients_added(trace, linked)))
    largest = max(passes, key=sum)
    wanted = Counter(largest)
    for sizes in passes:
        wanted |= Counter(sizes)
    wanted |= Counter(size for size in alive if size in wanted)
    return (*reversed(largest), *(wanted - Counter(largest)).elements())


def find_passes(trace: Trace, linked: LinkedSet) -> Iterator[list[int]]:
    """Yield for each backward pass the sizes of the gradients that it made, in order.

    Without shapes, the sizes are 0.
    """
    others = [call.op.begin_us for call in linked.calls if call.phase is not Phase.BACKWARD]
    sizes: dict[int, list[int]] = {}
    for op in sorted((op for op in trace.ops if op.name == ACCUMULATE), key=_begin):
        sizes.setdefault(bisect_right(others, op.begin_us), []).append(input_bytes(op, 0))
    yield from sizes.values()


def _begin(op: OpEvent) -> float:
    return op.begin_us


def _gradients_alive(linked: LinkedSet) -> list[int]:
    """Return the sizes of what backward passes left for the step that found most of it."""
    made = [
        one.block
        for one in linked.blocks
        if one.call is not None and linked.calls[one.call].phase is Phase.BACKWARD
    ]
    found = find_live_sizes(made, [step.begin_us for step in linked.steps])
    return max(found, key=sum, default=[])


def _gradients_added(trace: Trace, linked: LinkedSet) -> list[int]:
    """Return the sizes of what the last backward pass added to gradients that were there."""
    nodes = sorted(
        (op for op in trace.ops if op.name == f"{BACKWARD_PREFIX}{ACCUMULATE}"), key=_begin
    )
    begins = [node.begin_us for node in nodes]
    others = [call.op.begin_us for call in linked.calls if call.phase is not Phase.BACKWARD]
    added: dict[int, list[int]] = {}
    for block in sorted(
        (one.block for one in linked.blocks if one.call is not None), key=lambda one: one.alloc_us
    ):
        if block.free_us is None:
            continue
        at = bisect_right(begins, block.free_us) - 1
        if at >= 0 and block.free_us <= nodes[at].end_us and block.alloc_us < begins[at]:
            added.setdefault(bisect_right(others, block.free_us), []).append(block.size_bytes)
    return max(added.values(), key=sum, default=[])


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen:
    """Weights that are not trained."""

    sizes: tuple[int, ...] = ()
    #: of an embedding and a layer of its size, taken to be one weight, as most models have it
    maybe_tied_bytes: int = 0
    #: there are some, and their sizes are not known
    is_unseen: bool = False


def find_frozen(linked: LinkedSet, trained: Sequence[int]) -> Frozen:
    """Return the weights that are read and not trained.

    A weight whose read has a gradient is trained; so are as many of a size as ``trained`` has,
    since a trace may not show what belongs to which.
    """
    made = _made_backward(linked)
    visited = frozenset(call.forward_call for call in linked.calls)
    passes = [_Reads(linked, calls, made, visited) for calls in _forward_passes(linked)]
    explained = Counter(trained)
    for one in passes:
        explained |= one.with_gradient
    frozen: Counter[int] = Counter()
    for one in passes:
        frozen |= one.reads - explained
    tied = [size for size in {size for one in passes for size in one.embedded} if frozen[size] > 1]
    return Frozen(
        sizes=tuple((frozen - Counter(tied)).elements()),
        maybe_tied_bytes=sum(tied),
        is_unseen=not any(one.reads for one in passes)
        and (
            any(one.num_reading > len(trained) for one in passes)
            or _always_read_without_gradient(linked, passes)
        ),
    )


def _always_read_without_gradient(linked: LinkedSet, passes: Iterable[_Reads]) -> bool:
    """Tell whether each pass that trains also computes with weights that get no gradient by it.

    An evaluation does that, too, but not in each of them. What is worked out again in the backward
    pass is tied to nothing in the forward pass.
    """
    if any(call.node.startswith(_WORKED_OUT_AGAIN) for call in linked.calls):
        return False
    training = [one for one in passes if one.num_tied]
    return bool(training) and all(one.num_tied < one.num_reading for one in training)


def find_buffers(linked: LinkedSet) -> tuple[int, ...]:
    """Return the sizes of the statistics that batch norm keeps."""
    passes = ([*_buffers(linked, calls)] for calls in _forward_passes(linked))
    return tuple(max(passes, key=sum, default=[]))


def _buffers(linked: LinkedSet, calls: Iterable[int]) -> Iterator[int]:
    layers: set[str] = set()
    for position in calls:
        call = linked.calls[position]
        if call.op.name == "aten::batch_norm" and not (call.layer and call.layer in layers):
            layers.add(call.layer)
            yield from (input_bytes(call.op, at) for at in _STATISTICS)
            yield _COUNTER_BYTES


def _forward_passes(linked: LinkedSet) -> Iterator[list[int]]:
    """Yield the calls of each forward pass, as positions."""
    passing: list[int] = []
    for position, call in enumerate(linked.calls):
        if call.phase is Phase.FORWARD:
            passing.append(position)
        elif call.phase is not Phase.BETWEEN and passing:
            yield passing
            passing = []
    if passing:
        yield passing


class _Reads:
    """The weights that a forward pass reads, by their sizes."""

    def __init__(
        self,
        linked: LinkedSet,
        calls: Sequence[int],
        made: Mapping[int, Counter[int]],
        visited: Collection[int | None],
    ) -> None:
        self.reads: Counter[int] = Counter()
        #: those of embeddings
        self.embedded: set[int] = set()
        #: calls that read weights, of whatever size
        self.num_reading = 0
        #: those of them that the backward pass comes back to
        self.num_tied = 0
        self.with_gradient: Counter[int] = Counter()
        seen: set[tuple[str, int]] = set()
        for position in calls:
            call = linked.calls[position]
            self.num_reading += call.op.name in _WEIGHTS
            self.num_tied += call.op.name in _WEIGHTS and position in visited
            for at in _WEIGHTS.get(call.op.name, ()):
                size, place = input_bytes(call.op, at), (call.layer, at)
                if size == 0 or (call.layer and place in seen):
                    continue
                seen.add(place)
                self.reads[size] += 1
                if call.op.name == "aten::embedding":
                    self.embedded.add(size)
                # the gradient of the data may be of the same size
                of_data = size == input_bytes(call.op, _DATA.get(call.op.name, 0))
                self.with_gradient[size] += made.get(position, _NOTHING)[size] > of_data


_NOTHING: Counter[int] = Counter()


def _made_backward(linked: LinkedSet) -> dict[int, Counter[int]]:
    """Return the sizes of what the backward pass of each call made, by the call's position."""
    made: dict[int, Counter[int]] = {}
    for block, call, is_internal in linked.blocks:
        forward = None if call is None else linked.calls[call].forward_call
        if forward is not None and not is_internal:
            made.setdefault(forward, Counter())[block.size_bytes] += 1
    return made


def has_followers(linked: LinkedSet, trained: Sequence[int]) -> bool:
    """Tell whether a copy of the weights is kept that follows them, such as an average of them."""
    for ops in _after_steps(linked):
        if _ON_LISTS in ops:
            return True
        for same in ops.values():
            sizes = [input_bytes(op, 0) for op in same]
            is_most = sum(sizes) >= _MIN_FOLLOWED * sum(trained)
            if len(same) >= _MIN_FOLLOWED * len(trained) and (is_most or not any(sizes)):
                return True
    return False


def _after_steps(linked: LinkedSet) -> Iterator[dict[str, list[OpEvent]]]:
    """Yield what is written after each step and before the next forward pass, by operator."""
    is_after = False
    found: dict[str, list[OpEvent]] = {}
    for call in linked.calls:
        if call.phase is Phase.OPTIMIZER:
            is_after = True
        elif call.phase is not Phase.BETWEEN:
            is_after = False
        elif is_after and call.op.name in _FOLLOWING:
            found.setdefault(call.op.name, []).append(call.op)
            continue
        if found and not (is_after and call.phase is Phase.BETWEEN):
            yield found
            found = {}
    if found:
        yield found
