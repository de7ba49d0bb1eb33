"""What is answered for each rank of a distributed job -> the answer for the job.

A rank is one process with one GPU of its own. The worst of them decides. Which ranks are run, and
why the others are like them, is up to whoever runs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from memgate.report import Estimate, RankEntry, Reason

#: which ranks of a job were run; the others do what one of these does
RANKS_RUN = "RANKS_RUN"

#: some were not run that may need more
RANKS_NOT_RUN = "RANKS_NOT_RUN"


class RankAnswer(NamedTuple):
    """What is answered for one rank, on a GPU of its own."""

    rank: int
    estimate: Estimate


def find_worst(said: Sequence[RankAnswer]) -> int:
    """Return which of these answers decides: the worst, and of those the one that needs the most.

    The first of equals, so that the same ranks always have the same answer.
    """
    return min(
        range(len(said)),
        key=lambda place: (said[place].estimate.decision, -said[place].estimate.needs_bytes),
    )


def join_ranks(said: Sequence[RankAnswer], world_size: int) -> Estimate:
    """Return the worst answer, with what each rank needs and on which GPUs all of them fit."""
    worst = said[find_worst(said)]
    fits_on = [
        name for name in worst.estimate.fits_on if all(name in one.estimate.fits_on for one in said)
    ]
    return worst.estimate.model_copy(
        update={
            "reasons": [*worst.estimate.reasons, _tell_ranks(said, worst.rank, world_size)],
            "fits_on": fits_on,
            "world_size": world_size,
            "ranks": [
                RankEntry(
                    rank=one.rank,
                    needs_bytes=one.estimate.needs_bytes,
                    peak_bytes=one.estimate.peak_bytes,
                    decision=one.estimate.decision,
                )
                for one in said
            ],
        }
    )


def _tell_ranks(said: Sequence[RankAnswer], worst: int, world_size: int) -> Reason:
    ranks = [one.rank for one in said]
    named = name_ranks(ranks)
    others = world_size - len(ranks)
    is_alike = len({one.estimate.needs_bytes for one in said}) == 1
    message = f"of {world_size} ranks, {named} {'was' if len(ranks) == 1 else 'were'} run"
    reasons = (reason for one in said for reason in one.estimate.reasons)
    is_known = all(reason.code != RANKS_NOT_RUN for reason in reasons)
    if others and is_known:
        message += (
            f", and the other {others} do what {'it does' if len(ranks) == 1 else 'these do'}"
        )
    if len(ranks) > 1:
        most = max(said, key=lambda one: one.estimate.needs_bytes).rank
        message += "; they need the same" if is_alike else f"; rank {most} needs the most"
        message += f", and rank {worst} decides" if worst != most and not is_alike else ""
    return Reason(code=RANKS_RUN, message=message)


def name_ranks(ranks: Sequence[int]) -> str:
    """Name ranks as people do: ``rank 0``, ``ranks 0 and 7``, ``ranks 0, 1, 2 and 3``."""
    *before, last = map(str, ranks)
    return f"ranks {', '.join(before)} and {last}" if before else f"rank {last}"
