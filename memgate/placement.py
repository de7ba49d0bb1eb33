"""The places where a job may run -> what a verdict about all of them says.

For jobs that get a part of a GPU, or one of several GPUs: a cluster's gate knows no more than that.
A single whole GPU is explained as everywhere else (``explanation``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from memgate.decision import Decision
from memgate.explanation import (
    IN_DOUBT,
    Explanation,
    Sizes,
    explain,
    name_batch,
    name_gpus,
)
from memgate.units import format_size


class Room(NamedTuple):
    """A GPU, or a part of one, and what is decided about a job there."""

    gpu: str
    decision: Decision
    sizes: Sizes
    declared_by: str = ""
    """What limits the job to a part of the GPU: ``nvidia.com/gpumem``; empty if nothing does."""
    is_share: bool = False
    """The limit is declared as a share of the GPU, whichever GPU that is."""

    @property
    def is_doubted(self) -> bool:
        """Its sizes alone would have admitted the job: something about the run is in doubt."""
        is_enough = self.sizes.needs_bytes <= self.sizes.available_bytes
        return self.decision is Decision.UNCERTAIN and is_enough


class Advice(NamedTuple):
    """What would make a job fit, as far as it is known."""

    declare: str = ""
    """How much to declare, in the unit it is declared in: ``8772 MiB``."""
    largest_batch_size: int | None = None
    """0 if no batch fits."""
    batch_gpu: str = ""
    """The GPU on which that batch fits, if there are several."""
    smaller_batch: str = ""
    name_gpu_by: str = ""
    """How a person can say on which GPU the job must run."""
    fits_on: Sequence[str] = ()
    cluster: Sequence[str] = ()
    """The GPUs of the cluster; empty if they are not known."""


def explain_rooms(
    rooms: Sequence[Room], *, why: Sequence[str] = (), advice: Advice | None = None
) -> Explanation:
    """Put into words whether a job fits in all of the places where it may run."""
    advice = advice or Advice()
    if len(rooms) == 1 and not rooms[0].declared_by:
        return _explain_gpu(rooms[0], why, advice)
    helps = []
    if combine(rooms) is not Decision.ADMIT:
        helps = [*_declare(advice), *_batch(advice), *_name_gpu(rooms, advice), *_gpus(advice)]
    headline = _headline(rooms)
    if any(room.is_doubted for room in rooms):  # on every GPU, and whatever is declared
        return Explanation(headline=f"{headline}, but {IN_DOUBT}", why=list(why), helps=[])
    return Explanation(headline=headline, why=list(why), helps=helps)


def combine(rooms: Sequence[Room]) -> Decision:
    """A job must fit in one of its places; it is uncertain unless it fits in all."""
    decisions = [room.decision for room in rooms]
    if max(decisions) is Decision.REJECT:
        return Decision.REJECT
    return Decision.ADMIT if min(decisions) is Decision.ADMIT else Decision.UNCERTAIN


def explain_unplaced(needs_bytes: int, name_gpu_by: str) -> Explanation:
    """Say what a job that may run on any GPU needs, and that nothing was compared."""
    return Explanation(
        headline=f"needs {format_size(needs_bytes)}; no GPU is named, so it was not checked",
        why=[],
        helps=[f"to have it checked, add {name_gpu_by}"],
    )


def _explain_gpu(room: Room, why: Sequence[str], advice: Advice) -> Explanation:
    """Explain a whole GPU as every door does."""
    here = _of_the_cluster(advice)
    said = explain(
        room.decision,
        room.gpu,
        room.sizes,
        why=why,
        largest_batch_size=advice.largest_batch_size,
        smaller_batch=advice.smaller_batch,
        fits_on=here or advice.fits_on,
    )
    if room.decision is Decision.ADMIT or room.is_doubted or here:
        return said
    return said.model_copy(update={"helps": [*said.helps, *_nowhere_here(advice)]})


_OF_A_PART = {
    Decision.ADMIT: "fits in what is declared",
    Decision.UNCERTAIN: "may not fit in what is declared",
    Decision.REJECT: "does not fit in what is declared",
}


def _headline(rooms: Sequence[Room]) -> str:
    decision = combine(rooms)
    if len(rooms) == 1:
        return f"{_OF_A_PART[decision]}: {_compare(rooms)}"
    fitting = [room for room in rooms if room.decision is Decision.ADMIT]
    others = [room for room in rooms if room.decision is not Decision.ADMIT]
    if not others:
        return f"fits on all of {_names(rooms)}: {_compare(rooms)}"
    if decision is Decision.REJECT:
        return f"does not fit on any of {_names(others)}: {_compare(others)}"
    where = f"fits on {_names(fitting)}, but " if fitting else ""
    return f"{where}may not fit on {_names(others)}: {_compare(others)}"


def _compare(rooms: Sequence[Room]) -> str:
    """Say the most that a job needs in these places, and what each of them has."""
    most = max((room.sizes for room in rooms), key=lambda sizes: sizes.needs_bytes)
    needs = f"needs {format_size(most.needs_bytes)}"
    doubtful = [room.sizes for room in rooms if room.decision is Decision.UNCERTAIN]
    if any(sizes.needs_bytes > sizes.available_bytes for sizes in doubtful):
        least = format_size(min(sizes.least_bytes for sizes in doubtful))
        needs = f"needs {least} to {format_size(most.needs_bytes)}, depending on the CUDA context"
    return f"{needs}, {', '.join(dict.fromkeys(_has(room, rooms) for room in rooms))}"


def _has(room: Room, rooms: Sequence[Room]) -> str:
    size = format_size(room.sizes.available_bytes)
    if not room.declared_by:
        return f"{room.gpu} has {size}"
    of_it = f" of {room.gpu}" if room.is_share and len(rooms) > 1 else ""
    return f"{room.declared_by} declares {size}{of_it}"


def _names(rooms: Iterable[Room]) -> str:
    return ", ".join(dict.fromkeys(room.gpu for room in rooms))


def _declare(advice: Advice) -> list[str]:
    return [f"declare {advice.declare} or more"] if advice.declare else []


def _batch(advice: Advice) -> list[str]:
    if advice.largest_batch_size is not None:
        return [name_batch(advice.largest_batch_size, advice.batch_gpu)]
    return [advice.smaller_batch] if advice.smaller_batch else []


def _name_gpu(rooms: Sequence[Room], advice: Advice) -> list[str]:
    """Advise to choose a GPU if the job may get one that is too small or one that is not."""
    is_a_choice = len(rooms) > 1 and combine(rooms) is Decision.UNCERTAIN
    if not is_a_choice or not advice.name_gpu_by:
        return []
    return [f"to choose the GPU, add {advice.name_gpu_by}"]


def _gpus(advice: Advice) -> list[str]:
    """Name GPUs on which the job fits: those of the cluster, if it fits on any."""
    here = _of_the_cluster(advice)
    return [*name_gpus(here or advice.fits_on), *([] if here else _nowhere_here(advice))]


def _of_the_cluster(advice: Advice) -> list[str]:
    return [name for name in advice.fits_on if name in advice.cluster]


def _nowhere_here(advice: Advice) -> list[str]:
    return ["it fits on no GPU of this cluster as it is"] if advice.cluster else []
