"""The ranks of a job on many GPUs, side by side, and what of the job is divided over them."""

from __future__ import annotations

from dataclasses import dataclass

from memgate.decision import Decision
from memgate.jobspec import DistributedSpec, JobSpec, Strategy
from memgate.ranks import RANKS_RUN
from memgate.report import Estimate
from memgate_service.dashboard.rendering import CATEGORIES, write_size

#: what can be divided: the parts that do not depend on the batch
_PARTS = ("parameters", "gradients", "optimizer_state")

_WHOLE = "whole on every GPU"

#: which of them each strategy divides over all GPUs; what is missing here is told in words
_DIVIDED: dict[Strategy, tuple[str, ...]] = {
    Strategy.DDP: (),
    Strategy.ZERO1: ("optimizer_state",),
    Strategy.ZERO2: ("gradients", "optimizer_state"),
    Strategy.ZERO3: _PARTS,
    Strategy.FSDP: _PARTS,
    Strategy.FSDP2: _PARTS,
    Strategy.HSDP: _PARTS,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """A rank that was run."""

    rank: int
    decision: Decision
    needs_bytes: int
    peak_bytes: int
    #: how much of its GPU it needs, in percent
    width: float
    is_decisive: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRow:
    """A part of the job, and what a GPU has of it."""

    name: str
    label: str
    #: on the GPU of the rank that decided, at its peak
    size_bytes: int
    how: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RanksView:
    """What the page of a job shows about its ranks."""

    rows: tuple[RankRow, ...]
    num_others: int
    #: which were run, in words
    told: str
    shards: tuple[ShardRow, ...]
    #: ``fsdp2``, and whether nobody said so
    strategy: str
    is_assumed: bool


def view_ranks(said: Estimate, job: JobSpec | None) -> RanksView | None:
    """Return what to show; None if a job has one rank."""
    if not said.ranks:
        return None
    decisive = next(
        (one.rank for one in said.ranks if one.needs_bytes == said.needs_bytes), said.ranks[0].rank
    )
    rows = tuple(
        RankRow(
            rank=one.rank,
            decision=one.decision,
            needs_bytes=one.needs_bytes,
            peak_bytes=one.peak_bytes,
            width=min(100.0, round(100.0 * one.needs_bytes / max(1, said.available_bytes), 2)),
            is_decisive=one.rank == decisive,
        )
        for one in said.ranks
    )
    divided = job.distributed if job else None
    strategy = divided.strategy if divided else Strategy.DDP
    return RanksView(
        rows=rows,
        num_others=said.world_size - len(rows),
        told=said.why(RANKS_RUN),
        shards=tuple(_shards(said, strategy, divided)) if job else (),
        strategy=strategy if job else "",
        is_assumed=job is not None and divided is None,
    )


def _shards(said: Estimate, strategy: Strategy, divided: DistributedSpec | None) -> list[ShardRow]:
    rows = []
    for name in _PARTS:
        size = said.breakdown.get(name, 0)
        how = _tell(name, size, strategy, divided, said.world_size)
        rows.append(ShardRow(name=name, label=CATEGORIES[name], size_bytes=size, how=how))
    return rows


def _tell(
    name: str, size: int, strategy: Strategy, divided: DistributedSpec | None, world_size: int
) -> str:
    """Say how a part is divided, and how much of it there is in all."""
    if strategy is Strategy.TP:
        return f"of each layer a part on each of {world_size} GPUs; what is in no layer is whole"
    if strategy is Strategy.PP:
        return f"of the layers of one stage; there are {world_size} stages"
    if strategy is Strategy.ZERO2 and name == "parameters":
        return (
            f"divided over {world_size} GPUs between steps; whole on every GPU during a step, which"
            " is counted as activations"
        )
    if name not in _DIVIDED[strategy]:
        return _WHOLE
    degree = world_size
    if strategy is Strategy.HSDP and divided is not None:
        degree //= divided.num_replicas
    return f"divided over {degree} GPUs, about {write_size(size * degree)} in all"
