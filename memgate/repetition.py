"""LinkedSet, Residents -> LinkedSet: the job from its first iteration until nothing changes.

People record a few iterations out of the middle, or only one. A GPU sees a job from the start: the
first backward pass makes the gradients, the first step makes what the optimizer keeps, and only
then does an iteration find the memory as it will be from then on (the VeritasEst paper repeats
iterations, too). So iterations are copied:

- to the front, if the job had made steps before the trace began, with what the first of them makes;
- to the end, until there are enough; and if only the first of them begins with an evaluation, as
  trainers have it that try theirs out, that too: it finds more memory in use then.

An iteration leaves blocks that the next one frees: gradients, the batch, the loss. When that
happens is taken from two iterations of the trace that follow one another. If there is only one,
gradients go where they are set to zero, and what a variable holds goes when the variable is set
again.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from memgate.blocks import MemoryBlock, end_block
from memgate.iterations import Iteration, find_end, find_iterations
from memgate.links import Call, LinkedBlock, LinkedSet
from memgate.residents import Residents
from memgate.timeline import Category, Phase
from memgate.trace import OpEvent

#: so many iterations a timeline has at least: from the third on a job does nothing new, but its
#: cache may take a few more to settle
_ENOUGH = 6

#: iterations that differ by less than this do the same
_SAME_SIZE = 0.001

#: calls of other threads may end a little later than the last one
_LAST = 64

#: a block of an iteration: which of its calls made it, and which of that call's blocks it is
_Key = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """A job as a GPU sees it."""

    linked: LinkedSet
    #: in the trace
    num_iterations: int
    #: the trace shows the model without training, too
    has_evaluation: bool = False
    #: the trace's iterations are not of the same size; the largest one was repeated
    is_varied: bool = False
    #: what an iteration leaves for good, and the next one leaves again
    growth_bytes: int = 0
    #: of what an iteration allocates in its forward and backward pass
    size_bytes: int = 0


def repeat_iterations(linked: LinkedSet, residents: Residents) -> Repeated:
    """Complete a trace to a job; one without a step stays as it is."""
    linked = replace(linked, known={**linked.known, **residents.known})
    iterations = find_iterations(linked)
    if not iterations:
        return Repeated(linked=linked, num_iterations=0)
    iterations = (_without_setup(linked, iterations[0]), *iterations[1:])
    largest = max(one.size_bytes for one in iterations)
    is_largest = [one.size_bytes >= (1 - _SAME_SIZE) * largest for one in iterations]
    candidates = [one for one, is_it in zip(iterations, is_largest, strict=True) if is_it]
    template = [one for one in candidates if not one.has_evaluation or one is candidates[0]][-1]
    if template.first_call >= template.end_call:  # it only makes the model: nothing to repeat
        return Repeated(linked=linked, num_iterations=0)
    ends = _find_ends(linked, iterations)
    writer = _Writer(linked, template, ends)
    if residents.is_started:
        writer.write_copy(residents)
    end = find_end(linked, iterations[-1])
    writer.write_trace(iterations[0], iterations[-1], end)
    num_more = _ENOUGH - len(iterations) - residents.is_started
    for _ in range(max(num_more, 0 if all(is_largest) else 2)):
        writer.write_copy()
    is_seen_later = end.end_us > iterations[-1].end_us or any(
        one.has_evaluation for one in iterations[1:]
    )
    if iterations[0].has_evaluation and not is_seen_later:
        writer.write_evaluation(iterations[0])
    return Repeated(
        linked=writer.linked(),
        num_iterations=len(iterations),
        has_evaluation=is_seen_later or iterations[0].has_evaluation,
        is_varied=not all(is_largest),
        size_bytes=largest,
        growth_bytes=_growth(linked, iterations, ends) if len(iterations) > 1 else 0,
    )


def _without_setup(linked: LinkedSet, first: Iteration) -> Iteration:
    """Leave out of the first iteration what makes the model."""
    made = [one.call for one in linked.blocks if one.block.block_id in linked.known and one.call]
    begin = max((call + 1 for call in made if call < first.anchor), default=first.first_call)
    return replace(first, first_call=max(first.first_call, begin))


def _left_by(linked: LinkedSet, iteration: Iteration) -> Iterator[tuple[_Key, LinkedBlock]]:
    """Yield what an iteration leaves to the next one."""
    for key, one in _made_in(linked, iteration):
        if one.block.free_us is None or one.block.free_us > iteration.end_us:
            yield key, one


def _made_in(linked: LinkedSet, iteration: Iteration) -> Iterator[tuple[_Key, LinkedBlock]]:
    """Yield the blocks of an iteration, in order."""
    counts: dict[int, int] = {}
    for one in linked.blocks:
        call = one.call
        if call is not None and iteration.first_call <= call < iteration.end_call:
            count = counts[call] = counts.get(call, -1) + 1
            yield (call - iteration.anchor, count), one


def _growth(
    linked: LinkedSet, iterations: Sequence[Iteration], ends: Mapping[_Key, _Moment]
) -> int:
    """Return what an iteration leaves and nothing shows to be freed by the next one.

    Of the trace's first iteration, what comes before its forward pass may be missing.
    """
    before, last = _last_pair(iterations)
    is_cut_off = before is iterations[0]
    return sum(
        one.block.size_bytes
        for key, one in _left_by(linked, last)
        if key not in ends and not (is_cut_off and key[0] < 0)
    )


def _last_pair(iterations: Sequence[Iteration]) -> tuple[Iteration, Iteration]:
    """Return two that follow one another, without an evaluation in between if there are such."""
    pairs = list(pairwise(iterations))
    return [pair for pair in pairs if not pair[1].has_evaluation or pair is pairs[0]][-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    """When, in an iteration, something happens."""

    #: after this call began, counted from the first of the forward pass
    call: int
    #: so long
    after_us: float


def _find_ends(linked: LinkedSet, iterations: Sequence[Iteration]) -> dict[_Key, _Moment]:
    """Tell of the blocks that an iteration leaves when the next one frees them."""
    begins = [call.op.begin_us for call in linked.calls]
    if len(iterations) == 1:
        return dict(_guess_ends(linked, iterations[0], begins))
    before, last = _last_pair(iterations)
    return {
        key: _moment(one.block.free_us, last, begins)
        for key, one in _left_by(linked, before)
        if one.block.free_us is not None and one.block.free_us <= last.end_us
    }


def _moment(at_us: float, iteration: Iteration, begins: Sequence[float]) -> _Moment:
    call = max(bisect_right(begins, at_us) - 1, iteration.first_call)
    return _Moment(call=call - iteration.anchor, after_us=at_us - begins[call])


def _guess_ends(
    linked: LinkedSet, only: Iteration, begins: Sequence[float]
) -> Iterator[tuple[_Key, _Moment]]:
    """Tell the same of an iteration that is the only one: see the beginning of this module."""
    zeroed_us = [note.begin_us for note in linked.zero_grads]
    backward = (
        linked.calls[at].op.begin_us
        for at in range(only.first_call, only.end_call)
        if linked.calls[at].phase is Phase.BACKWARD
    )
    before_us = next(backward, begins[only.first_call])
    for key, one in _left_by(linked, only):
        assert one.call is not None
        phase = linked.calls[one.call].phase
        at_us = one.block.alloc_us
        if phase is Phase.BACKWARD:
            last = bisect_right(zeroed_us, at_us) - 1
            at_us = zeroed_us[last] if last >= 0 else before_us
        if phase is not Phase.OPTIMIZER:
            yield key, _moment(at_us, only, begins)


class _Writer:
    """Writes iterations one after the other."""

    def __init__(
        self, linked: LinkedSet, template: Iteration, ends: Mapping[_Key, _Moment]
    ) -> None:
        self._linked = linked
        self._template = template
        self._ends = ends
        self._made = list(_made_in(linked, template))
        self._calls: list[Call] = []
        self._blocks: list[LinkedBlock] = []
        self._categories: dict[int, Category] = {}
        #: what the iteration before left, by position among the blocks
        self._left: dict[_Key, int] = {}
        self._num_iterations = 0
        self._ended_us = 0.0

    def write_copy(self, first: Residents | None = None) -> None:
        """Write the template; as the first of all, it makes what is older than the trace."""
        begin, end = self._template.first_call, self._template.end_call
        calls = self._linked.calls[begin:end]
        shift_us = self._now() - calls[0].op.begin_us
        moved_by = len(self._calls) - begin
        for call in calls:
            self._write_call(call, shift_us, moved_by, self._num_iterations, begin)
        self._num_iterations += 1
        self._ended_us = self._template.end_us + shift_us
        self._end_left(self._template.anchor + moved_by)
        if first is not None:
            self._write_firsts(first, begin + moved_by)
        ended_us = self._now()
        for key, one in self._made:
            assert one.call is not None
            is_left = one.block.free_us is None or one.block.free_us > self._template.end_us
            is_state = calls[one.call - begin].phase is Phase.OPTIMIZER
            if one.block.block_id in self._linked.known or (is_left and is_state):
                continue  # made once
            position = self._write_block(one, shift_us, moved_by)
            if key in self._ends and is_left:
                self._left[key] = position
            elif is_left:
                self._free(position, ended_us)

    def _write_firsts(self, residents: Residents, first_call: int) -> None:
        """Write what the first iteration makes for good."""
        phases = {
            Phase.BACKWARD: (residents.gradients, Category.GRADIENTS),
            Phase.OPTIMIZER: (residents.state, Category.OPTIMIZER_STATE),
        }
        for phase, (sizes, category) in phases.items():
            of_phase = (
                at for at in range(first_call, len(self._calls)) if self._calls[at].phase is phase
            )
            call = next(of_phase, len(self._calls) - 1)
            at_us = self._calls[call].op.begin_us
            for size in sizes:
                self._categories[len(self._blocks)] = category
                block = MemoryBlock(0, size, at_us, None, self._calls[call].op.thread)
                self._blocks.append(LinkedBlock(block, call, False))

    def write_trace(self, first: Iteration, last: Iteration, end: Iteration) -> None:
        """Write the trace itself; ``end`` is the last iteration with what follows it."""
        linked = self._linked
        shift_us = self._now() - linked.calls[0].op.begin_us if self._calls else 0.0
        moved_by = len(self._calls)
        for call in linked.calls[: end.end_call]:
            self._write_call(call, shift_us, moved_by, self._num_iterations + call.iteration, 0)
        self._ended_us = end.end_us + shift_us
        self._end_left(first.anchor + moved_by)
        positions: dict[int, int] = {}
        for one in linked.blocks:
            if one.block.alloc_us > end.end_us:
                break
            position = positions[one.block.block_id] = self._write_block(one, shift_us, moved_by)
            if one.block.free_us is None or one.block.free_us > end.end_us:
                of_evaluation = one.block.alloc_us > last.end_us
                self._free(position, end.end_us + shift_us if of_evaluation else None)
        self._left = {
            key: positions[one.block.block_id]
            for key, one in _left_by(linked, last)
            if key in self._ends
            and one.block.block_id not in linked.known
            and (one.block.free_us is None or one.block.free_us > end.end_us)
        }
        self._num_iterations += linked.calls[end.end_call - 1].iteration + 1

    def write_evaluation(self, iteration: Iteration) -> None:
        """Write the evaluation that an iteration begins with: the model as it is now is larger."""
        begin, end = iteration.first_call, iteration.anchor
        calls = self._linked.calls[begin:end]
        until_us = self._linked.calls[end].op.begin_us
        shift_us = self._now() - calls[0].op.begin_us
        moved_by = len(self._calls) - begin
        for call in calls:
            self._write_call(call, shift_us, moved_by, self._num_iterations, begin)
        self._num_iterations += 1
        for one in self._linked.blocks:
            if one.call is None or not begin <= one.call < end:
                continue
            position = self._write_block(one, shift_us, moved_by)
            if one.block.free_us is None or one.block.free_us > until_us:
                self._free(position, self._now())

    def linked(self) -> LinkedSet:
        """Return what was written."""
        order = sorted(range(len(self._blocks)), key=lambda at: self._blocks[at].block.alloc_us)
        blocks = []
        for number, at in enumerate(order):
            (_, size_bytes, alloc_us, free_us, thread), call, is_internal = self._blocks[at]
            block = MemoryBlock(number, size_bytes, alloc_us, free_us, thread)
            blocks.append(LinkedBlock(block, call, is_internal))
        known = {
            number: self._categories[at]
            for number, at in enumerate(order)
            if at in self._categories
        }
        return replace(self._linked, calls=tuple(self._calls), blocks=tuple(blocks), known=known)

    def _now(self) -> float:
        """Return when what was written so far is over: an optimizer frees after its last call."""
        ends_us = (call.op.end_us for call in self._calls[-_LAST:])
        return max((self._ended_us, *ends_us)) + 1

    def _write_call(
        self, call: Call, shift_us: float, moved_by: int, iteration: int, since: int
    ) -> None:
        if shift_us == 0 and moved_by == 0 and since == 0 and iteration == call.iteration:
            self._calls.append(call)
            return
        op, forward = call.op, call.forward_call
        moved = OpEvent(
            op.begin_us + shift_us,
            op.end_us + shift_us,
            op.thread,
            op.name,
            op.sequence_number,
            op.forward_thread,
            op.input_dims,
            op.input_types,
        )
        tied = None if forward is None or forward < since else forward + moved_by
        self._calls.append(Call(moved, call.phase, iteration, call.layer, call.node, tied))

    def _write_block(self, one: LinkedBlock, shift_us: float, moved_by: int) -> int:
        block, call, is_internal = one
        if (category := self._linked.known.get(block.block_id)) is not None:
            self._categories[len(self._blocks)] = category
        if shift_us == 0 and moved_by == 0:
            self._blocks.append(one)
            return len(self._blocks) - 1
        free_us = None if block.free_us is None else block.free_us + shift_us
        moved = MemoryBlock(0, block.size_bytes, block.alloc_us + shift_us, free_us, block.thread)
        self._blocks.append(
            LinkedBlock(moved, None if call is None else call + moved_by, is_internal)
        )
        return len(self._blocks) - 1

    def _end_left(self, anchor: int) -> None:
        """Free what the iteration before left; the next one's forward pass begins at a call."""
        for key, position in self._left.items():
            moment = self._ends[key]
            call = min(max(anchor + moment.call, 0), len(self._calls) - 1)
            self._free(position, self._calls[call].op.begin_us + moment.after_us)
        self._left = {}

    def _free(self, position: int, at_us: float | None) -> None:
        block, call, is_internal = self._blocks[position]
        # iterations that differ may have the free before the block
        at_us = None if at_us is None else max(at_us, block.alloc_us)
        self._blocks[position] = LinkedBlock(end_block(block, at_us), call, is_internal)
