"""Trace, LinkedSet -> what the job had put on the device before the trace began.

``memgate profile`` writes the model into the traces it makes. In other people's traces it is worked
out (``weights``), as is what the optimizer keeps (``optimizers``). What is made inside the trace is
among its blocks, and counted there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from memgate.errors import TraceFormatError
from memgate.links import LinkedBlock, LinkedSet
from memgate.optimizers import (
    MADE_WITH_THE_OPTIMIZER,
    NOT_MODELLED,
    count_kept,
    keep_alike,
)
from memgate.phases import find_optimizers
from memgate.stepped import Stepped, find_stepped
from memgate.timeline import Category, Phase
from memgate.trace import Trace
from memgate.weights import (
    SCALAR_BYTES,
    Frozen,
    find_buffers,
    find_frozen,
    find_trained,
    has_followers,
)

#: under which the sizes stand among a trace's notes
MODEL_NOTE = "model_bytes"

#: if so much of something is made inside the trace, all of it is
_MOST = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Residents:
    """What is older than a trace, as sizes in the order in which it was made."""

    #: parameters and buffers
    model: tuple[int, ...] = ()
    #: parameters that have gradients, wherever they were made
    trained: tuple[int, ...] = ()
    #: what the optimizer keeps, if it is made before the first step
    kept: tuple[int, ...] = ()
    #: gradients, which the first backward pass made and which are only set to zero since then
    gradients: tuple[int, ...] = ()
    #: what the optimizer keeps, made by its first step
    state: tuple[int, ...] = ()
    #: blocks of the trace that are known for what they are, by id
    known: Mapping[int, Category] = field(default_factory=dict)
    #: the optimizer is not modelled; or the first step is not in the trace, and it is not
    #: PyTorch's, or there are several kinds
    is_state_unknown: bool = False
    #: what the optimizer steps
    stepped: Stepped = field(default_factory=Stepped)
    #: of those that are not trained
    frozen: Frozen = field(default_factory=Frozen)

    @property
    def is_started(self) -> bool:
        """The job had made steps before the trace began."""
        return bool(self.state or self.gradients)


def find_residents(trace: Trace, linked: LinkedSet) -> Residents:
    """Work out what is older than a trace.

    Raises:
        TraceFormatError: if the trace's own notes are broken.
    """
    trained = find_trained(trace, linked)
    kept = count_kept(linked.optimizer, _called(linked))
    stepped = Stepped() if kept is None else find_stepped(trace, linked, trained)
    made = _Made(linked)
    frozen = Frozen()
    if MODEL_NOTE in trace.notes:
        model = _noted(trace.notes[MODEL_NOTE])
    else:
        # what follows a step may be the weights, which follow their copies
        follows = not stepped.copies and has_followers(linked, trained)
        copies = trained if follows else stepped.copies
        frozen = find_frozen(linked, trained)
        of_model = (*trained, *frozen.sizes, *find_buffers(linked), *copies)
        model = made.without(of_model, Category.PARAMETERS)
    state = _state(stepped.copies or trained, kept or 0)
    is_early = linked.optimizer in MADE_WITH_THE_OPTIMIZER
    if is_early:
        state = made.without(state, Category.OPTIMIZER_STATE)
    elif _is_most(_made_by_steps(linked), state):
        state = ()
    return Residents(
        model=model,
        trained=trained,
        kept=state if is_early else (),
        state=() if is_early else state,
        # those of copies are made before each step, and take the place of the others
        gradients=() if stepped.copies else _missing_gradients(linked, trained),
        known=made.known,
        stepped=stepped,
        frozen=frozen if model else Frozen(),
        is_state_unknown=linked.optimizer in NOT_MODELLED
        or (_is_mixed(trace, kept) and bool(linked.steps) and not _made_by_steps(linked)),
    )


def _is_mixed(trace: Trace, kept: int | None) -> bool:
    """Say whether an optimizer is not known, or several are that do not keep equally much."""
    optimizers = set(find_optimizers(trace.annotations))
    return kept is None or (len(optimizers) > 1 and not keep_alike(optimizers))


def _noted(note: Any) -> tuple[int, ...]:
    try:
        return msgspec.convert(note, tuple[int, ...])
    except msgspec.ValidationError as error:
        raise TraceFormatError(f"the trace's note {MODEL_NOTE!r} is broken: {error}") from None


class _Made:
    """What was made inside the trace before its first forward pass, and stays."""

    def __init__(self, linked: LinkedSet) -> None:
        self._ids: dict[int, list[int]] = {}
        self._sizes: dict[int, int] = {}
        for one in _before_the_first_pass(linked):
            self._ids.setdefault(one.block.size_bytes, []).append(one.block.block_id)
            self._sizes[one.block.block_id] = one.block.size_bytes
        #: blocks that were recognised, by id
        self.known: dict[int, Category] = {}

    def without(self, sizes: Sequence[int], category: Category) -> tuple[int, ...]:
        """Return sizes without those that were made; if most were, none is left."""
        found: list[int] = []
        for size, count in Counter(sizes).items():
            found += self._ids.get(size, [])[:count]
        missing = Counter(sizes)
        missing.subtract(self._sizes[one] for one in found)
        if sum(missing.elements()) >= _MOST * sum(sizes):
            return tuple(sizes)
        self.known.update(dict.fromkeys(found, category))
        for size, ids in self._ids.items():
            self._ids[size] = [one for one in ids if one not in self.known]
        return ()


def _before_the_first_pass(linked: LinkedSet) -> Iterator[LinkedBlock]:
    firsts = (call.op.begin_us for call in linked.calls if call.phase is Phase.FORWARD)
    first_us = next(firsts, float("-inf"))
    for one in linked.blocks:
        if one.block.alloc_us >= first_us:
            return
        is_between = one.call is not None and linked.calls[one.call].phase is Phase.BETWEEN
        if is_between and _stays(linked, one):
            yield one


def _stays(linked: LinkedSet, one: LinkedBlock) -> bool:
    """Tell whether a block outlives the last step: a program that ends gives everything back."""
    last_us = linked.steps[-1].end_us if linked.steps else float("inf")
    return one.block.free_us is None or one.block.free_us > last_us


def _called(linked: LinkedSet) -> Counter[str]:
    return Counter(call.op.name for call in linked.calls if call.phase is Phase.OPTIMIZER)


def _state(trained: Iterable[int], kept: int) -> tuple[int, ...]:
    return tuple(size for size in trained for _ in range(kept))


def _made_by_steps(linked: LinkedSet) -> list[int]:
    """Return the sizes of what steps made and left, numbers aside."""
    return [
        one.block.size_bytes
        for one in linked.blocks
        if one.call is not None
        and linked.calls[one.call].phase is Phase.OPTIMIZER
        and one.block.size_bytes > SCALAR_BYTES
        and _stays(linked, one)
    ]


def _is_most(made: Iterable[int], wanted: Sequence[int]) -> bool:
    found = Counter(made) & Counter(wanted)
    return sum(found.elements()) > _MOST * sum(wanted)


def _missing_gradients(linked: LinkedSet, trained: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes of gradients that no backward pass makes: they are there all the time."""
    if not linked.steps:
        return ()
    left = [
        one.block.size_bytes
        for one in linked.blocks
        if one.call is not None
        and linked.calls[one.call].phase is Phase.BACKWARD
        and one.block.alloc_us < linked.steps[-1].begin_us
        and (one.block.free_us is None or one.block.free_us > linked.steps[-1].begin_us)
    ]
    return () if _is_most(left, trained) else tuple(reversed(trained))
