"""What is asked about a command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from memgate.gpus import GpuSpec
from memgate_worker.hook.memgate_hook.layout import ToldWorld
from memgate_worker.hook.memgate_hook.watch import Watch
from memgate_worker.limits import DEFAULT_LIMITS, RunLimits


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandQuestion:
    """A command, and how it is run."""

    command: tuple[str, ...]
    #: where it is started, and its variables
    directory: Path
    environment: Mapping[str, str]
    #: the GPU that it is told it has
    gpu: GpuSpec
    watch: Watch = field(default_factory=Watch)
    limits: RunLimits = DEFAULT_LIMITS
    #: pad what varies among its batches to this length, or let it meet the longest samples of its
    #: ``data``; None: they are left as they are
    longest: int | Literal["data"] | None = None
    #: answer for the eager job where it says ``torch.compile``
    ignores_compile: bool = False
    #: leave the network, and what reports to it, as they are
    is_online: bool = False
    #: run it even if its changes of files cannot be kept apart
    allows_writes: bool = False
    #: what it sees in the place of files and directories; needs an overlay
    covers: Mapping[Path, Path] = field(default_factory=dict)
    #: a new folder for its changes of files; None: they are thrown away
    keep: Path | None = None
    #: it has no evaluation, as the caller says
    has_no_evaluation: bool = False
    #: where sizes depend on data that is not there: ``all`` elements are found, or ``none``
    data_sizes: str = "all"
    #: the runtime of ours that it runs in; empty: an environment of its own
    runtime: str = ""
    #: processes on a node, and nodes, where the command leaves that open; None: as it says
    nproc: int | None = None
    nnodes: int | None = None
    #: of a job of several processes, the one that is run; the others wait
    rank: int = 0
    #: Python objects that ranks sent which were run before, as they lie in the run's folder
    sent: Mapping[str, bytes] = field(default_factory=dict)
    #: GPUs that it sees; None: as many as ``nproc``
    num_devices: int | None = None
    #: by the variables that it is given, a command is a process of this world
    given_world: ToldWorld | None = None
