"""Timeline -> what of its trace could not be explained, and whether that is too much.

Each stage counts what it could not explain. A little is normal: a profiler is switched on while a
program runs. Where it is a lot, the figure may be far off, and the answer says so.
"""

from __future__ import annotations

from collections.abc import Iterator

from memgate.blocks import BlockProblem
from memgate.links import LinkProblem
from memgate.report import Reason
from memgate.timeline import Timeline

#: above this the figure is doubtful: ``memgate accuracy`` counts an error beyond it, too
MAX_SHARE = 0.1

#: above this people are told: every trace has a few numbers that Python made tensors
_TOLD_SHARE = 0.01

#: what each problem affects, for people; the others are corrected without guessing
_SENTENCES = {
    LinkProblem.NO_FORWARD: "of the calls of the backward pass have no call of the forward pass",
    LinkProblem.NO_OPERATOR: "of the bytes were allocated outside of any operator and left out",
    BlockProblem.FREE_NOT_SEEN: "of the blocks have no free, so that their end is a guess",
    BlockProblem.OTHER_SIZE: "of the blocks were freed with another size than they had",
}


def find_doubts(timeline: Timeline) -> list[Reason]:
    """Return the reason to doubt a timeline, if there is one."""
    much = list(_told(timeline, above=MAX_SHARE))
    if not much:
        return []
    message = f"much of the trace could not be explained: {'; '.join(much)}"
    return [Reason(code="TRACE_UNEXPLAINED", message=message)]


def count_problems(timeline: Timeline) -> dict[str, int]:
    """Return how often each problem was found, including those that were not."""
    return {
        problem.value: timeline.diagnostics.get(problem.value, 0)
        for problem in (*BlockProblem, *LinkProblem)
    }


def tell_diagnostics(timeline: Timeline) -> str:
    """Return what could not be explained in a line for people; empty if it is next to nothing."""
    return "; ".join(_told(timeline, above=_TOLD_SHARE))


def _told(timeline: Timeline, *, above: float) -> Iterator[str]:
    for problem, sentence in _SENTENCES.items():
        share = timeline.shares.get(problem.value, 0.0)
        if share > above:
            count = timeline.diagnostics.get(problem.value, 0)
            yield f"{100 * share:.2g} % {sentence} ({count:,})"
