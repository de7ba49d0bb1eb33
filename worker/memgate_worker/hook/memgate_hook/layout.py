"""How a job's processes are laid out over nodes, and the variables that tell each which it is.

No torch here, and nothing of a run: memgate itself uses it, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

_RANK = ("RANK", "ROLE_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
_WORLD_SIZE = (
    *("WORLD_SIZE", "ROLE_WORLD_SIZE", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"),
    *("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
)
_LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")
_NPROC = (
    *("LOCAL_WORLD_SIZE", "LOCAL_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"),
    *("SLURM_NTASKS_PER_NODE",),
)
_NODE = ("GROUP_RANK", "NODE_RANK", "CROSS_RANK", "SLURM_NODEID")
_NNODES = ("GROUP_WORLD_SIZE", "CROSS_SIZE", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")

#: that say which process of a job this is
PLACE_VARIABLES = (*_RANK, *_LOCAL_RANK, *_NODE)

#: of each way to say how many processes there are: what must be there, too
_NEEDED = {
    "WORLD_SIZE": ("RANK", "LOCAL_RANK"),
    "SLURM_NTASKS": ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"),
    "OMPI_COMM_WORLD_SIZE": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK"),
}


class Layout(NamedTuple):
    """So many processes on each of so many nodes."""

    nproc: int
    nnodes: int = 1

    @property
    def world_size(self) -> int:
        """All processes."""
        return self.nproc * self.nnodes

    def variables(self, rank: int, present: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of a rank: those that are there, with the values that it has."""
        node, local_rank = divmod(rank, self.nproc)
        values = {
            **dict.fromkeys(_RANK, rank),
            **dict.fromkeys(_WORLD_SIZE, self.world_size),
            **dict.fromkeys(_LOCAL_RANK, local_rank),
            **dict.fromkeys(_NPROC, self.nproc),
            **dict.fromkeys(_NODE, node),
            **dict.fromkeys(_NNODES, self.nnodes),
        }
        return {name: str(value) for name, value in values.items() if name in present}


class ToldWorld(NamedTuple):
    """What variables say before any launcher has set them."""

    layout: Layout
    #: the variable that says how many processes there are
    source: str

    def variables(self, rank: int, present: Mapping[str, str]) -> dict[str, str]:
        """Return the variables of a rank, with those that one of its kind needs."""
        needed = dict.fromkeys(_NEEDED[self.source], "")
        return self.layout.variables(rank, {**present, **needed})


def find_given_world(
    variables: Mapping[str, str], nproc: int | None = None, nnodes: int | None = None
) -> ToldWorld | None:
    """Return the world of a process by its variables; None if they speak of no other process.

    What they leave open is as the caller says, if that is possible.
    """
    for source in _NEEDED:
        size = _number(variables.get(source, ""))
        if size > 1:
            on_a_node = _first_number(variables, _NPROC)
            told = _first_number(variables, _NNODES) or (0 if nproc else nnodes or 0)
            if not on_a_node and told and size % told == 0:
                on_a_node = size // told
            on_a_node = min(on_a_node or nproc or size, size)
            return ToldWorld(Layout(on_a_node, -(-size // on_a_node)), source)
    return None


def _first_number(variables: Mapping[str, str], names: tuple[str, ...]) -> int:
    return next((_number(variables[name]) for name in names if name in variables), 0)


def _number(text: str) -> int:
    """Return a number; Slurm writes ``8(x4)`` for eight on each of four nodes."""
    digits = text.partition("(")[0].strip()
    return int(digits) if digits.isdecimal() else 0
