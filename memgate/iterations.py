"""LinkedSet -> the iterations of its training loop, each with its calls.

An iteration ends with the step of an optimizer; where a loop has several optimizers, with the last
of them. How many belong together shows in the operators, which repeat.

Some iterations begin with an evaluation, which is a forward pass, or many, without a backward pass:
their calls of the forward pass are those of the others, with more before them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from memgate.links import LinkedSet
from memgate.timeline import Phase

_COMPUTED = (Phase.FORWARD, Phase.BACKWARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class Iteration:
    """One turn of the loop: from the end of a step to the end of the next."""

    begin_us: float
    end_us: float
    #: positions among the calls
    first_call: int
    end_call: int
    #: the first call of its forward pass: what comes before may be missing in the first iteration
    anchor: int
    #: of what the forward and the backward pass allocated
    size_bytes: int
    #: it begins with an evaluation, as not all of them do
    has_evaluation: bool = False


def find_iterations(linked: LinkedSet) -> tuple[Iteration, ...]:
    """Return the complete iterations, in order; the only one of a trace takes in all of it."""
    begins = [call.op.begin_us for call in linked.calls]
    bounds = [float("-inf"), *(step.end_us for step in linked.steps)]
    positions = [bisect_left(begins, bound) for bound in bounds]
    if len(positions) > 2 and not _is_complete(linked, positions[0], positions[1]):
        bounds, positions = bounds[1:], positions[1:]  # the trace begins within an iteration
    names = [
        tuple(call.op.name for call in linked.calls[first:end] if call.phase in _COMPUTED)
        for first, end in pairwise(positions)
    ]
    if not any(names):
        return ()
    length = _find_length(names)
    # from the last step back: before the first whole iteration there may be a part of one
    ends = range(len(names), length - 1, -length)[::-1]
    sums = _sum_sizes(linked)
    if len(ends) == 1 and length == len(linked.steps):
        return (_make(linked, sums, 0, len(begins), bounds[0], _end_of_work(linked)),)
    spans = [(end - length, end) for end in ends]
    passes = [_passing(linked, positions[first], positions[end]) for first, end in spans]
    training = min((_names(linked, passing) for passing in passes), key=len)
    return tuple(
        _make(linked, sums, positions[first], positions[end], bounds[first], bounds[end], training)
        for first, end in spans
    )


def _names(linked: LinkedSet, positions: Iterable[int]) -> list[str]:
    return [linked.calls[at].op.name for at in positions]


def find_end(linked: LinkedSet, last: Iteration) -> Iteration:
    """Let the last iteration take in an evaluation that follows it."""
    phases = {call.phase for call in linked.calls[last.end_call :]}
    if Phase.FORWARD not in phases or Phase.BACKWARD in phases:
        return last
    return replace(last, end_call=len(linked.calls), end_us=_end_of_work(linked))


def _passing(linked: LinkedSet, first: int, end: int) -> list[int]:
    """Return the calls of the forward pass."""
    return [at for at in range(first, end) if linked.calls[at].phase is Phase.FORWARD]


def _end_of_work(linked: LinkedSet) -> float:
    """Return when the last thing was done; what is freed later, a program frees that ends."""
    last = (linked.steps[-1].end_us, *(note.end_us for note in linked.zero_grads))
    return max(*last, *(call.op.end_us for call in linked.calls))


def _find_length(names: Sequence[tuple[str, ...]]) -> int:
    """Return after how many steps the operators repeat; all if they never do.

    What a model does only once, such as filling a cache, is in the first: that is looked at only
    if there is nothing else to look at.
    """
    numbers: dict[tuple[str, ...], int] = {}
    kinds = [numbers.setdefault(mine, len(numbers)) for mine in names]
    num = len(kinds)
    period = _find_period(kinds[1:])
    if period < num - 1:
        return period
    if num > 1 and kinds[0] == kinds[-1]:
        return num - 1
    return num if num <= 2 else 1


def _find_period(kinds: Sequence[int]) -> int:
    """Return after how many items a sequence repeats; all of them if it never does.

    In linear time, by the prefix function of Knuth, Morris and Pratt: a trace may have hundreds of
    thousands of steps.
    """
    #: of each beginning, how much of it is its end as well
    overlaps = [0] * len(kinds)
    for at in range(1, len(kinds)):
        overlap = overlaps[at - 1]
        while overlap and kinds[at] != kinds[overlap]:
            overlap = overlaps[overlap - 1]
        overlaps[at] = overlap + (kinds[at] == kinds[overlap])
    return len(kinds) - overlaps[-1] if overlaps else 0


def _is_complete(linked: LinkedSet, first: int, end: int) -> bool:
    phases = {call.phase for call in linked.calls[first:end]}
    return phases.issuperset(_COMPUTED)


def _sum_sizes(linked: LinkedSet) -> list[int]:
    """Return for each call what the forward and the backward pass allocated before it."""
    sizes = [0] * len(linked.calls)
    for block, call, _ in linked.blocks:
        if call is not None and linked.calls[call].phase in _COMPUTED:
            sizes[call] += block.size_bytes
    return list(accumulate(sizes, initial=0))


def _make(
    linked: LinkedSet,
    sums: Sequence[int],
    first: int,
    end: int,
    begin_us: float,
    end_us: float,
    training: Sequence[str] = (),
) -> Iteration:
    """Describe an iteration; ``training`` is what a forward pass without an evaluation calls."""
    passing = _passing(linked, first, end)
    num_more = len(passing) - len(training) if training else 0
    if num_more and _names(linked, passing[num_more:]) != training:
        num_more = 0
    anchor = passing[num_more] if passing else first
    return Iteration(
        begin_us=begin_us,
        end_us=end_us,
        first_call=first,
        end_call=end,
        anchor=anchor,
        size_bytes=sums[end] - sums[anchor],
        has_evaluation=num_more > 0,
    )
