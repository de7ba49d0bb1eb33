"""What passes between engines and the host that runs jobs: lines of JSON each way, no torch."""

from __future__ import annotations

from msgspec import Struct

from memgate.errors import Fault, MemgateError, restore_error
from memgate.mistakes import Mistake
from memgate.nccl import NO_COMMUNICATION, NcclUse
from memgate.timeline import Label, PhaseStart, TimelineEvent
from memgate.workspaces import PossibleWorkspace
from memgate_worker.limits import RunLimits


class JobRun(Struct, frozen=True, kw_only=True, tag="job"):
    """Run the training loop of a job spec."""

    #: a ``JobSpec`` as JSON
    spec: str


class ScriptRun(Struct, frozen=True, kw_only=True):
    """A user's own script, run until its optimizer has made some steps."""

    path: str
    arguments: tuple[str, ...]
    #: where it is started
    directory: str
    num_steps: int


class ProfileRun(Struct, frozen=True, kw_only=True, tag="profile"):
    """Run the training loop of a job spec on the CPU, under the profiler."""

    #: a ``JobSpec`` as JSON
    spec: str
    #: where to write the trace
    trace_path: str
    #: take little of this machine's memory, and more time
    frugal: bool = False


class ProfileScriptRun(Struct, frozen=True, kw_only=True, tag="profile_script"):
    """Run a user's own script on the CPU, under the profiler, for some optimizer steps."""

    script: ScriptRun
    #: where to write the trace
    trace_path: str


class Request(Struct, frozen=True, kw_only=True):
    """Run this, in a separate process."""

    work: JobRun | ProfileRun | ProfileScriptRun
    #: environment variables that describe the device and the allocator's settings to that process
    environment: dict[str, str]
    limits: RunLimits


#: sent instead of a request: nobody waits for the job that runs, if one does. The host ends it and
#: says ``Stopped``; nothing it said before that counts
STOP = b"stop\n"


class Stopped(Struct, frozen=True, kw_only=True, tag="stopped"):
    """No job runs now."""


class Progress(Struct, frozen=True, kw_only=True, tag="progress"):
    """A script has made this many optimizer steps; an answer will follow."""

    num_steps: int


class WorkAreas(Struct, frozen=True, kw_only=True):
    """Bytes of the largest work area that a library asked PyTorch for; None: there was none."""

    #: torch.fft: what the job's own cuFFT said
    fft_asked: int | None = None
    #: torch.fft: a bound, where there is no cuFFT that can be asked
    fft_assumed: int | None = None
    #: torch.linalg: a bound
    linalg_assumed: int | None = None
    #: what the cuFFT that was asked takes of the device itself
    cufft_itself: int = 0


class SeenCommunicator(Struct, frozen=True, kw_only=True):
    """A communicator of NCCL."""

    num_ranks: int
    #: this process's in it
    rank: int
    device: int
    #: that it sent to or received from directly
    num_peers: int
    #: calls and bytes of the whole messages, by kind; nothing: it was never used
    traffic: dict[str, tuple[int, int]]


class SeenRanks(Struct, frozen=True, kw_only=True):
    """A rank of several; see ``memgate_hook.communication``."""

    rank: int
    world_size: int
    #: as the launcher said
    local_rank: int | None
    local_world_size: int | None
    communicators: list[SeenCommunicator]
    #: of whole messages, by kind, in a training step
    bytes_per_step: dict[str, int]
    #: integers that other ranks would have sent to all were looked at: sizes, most likely
    reads_from_other_ranks: bool
    #: objects that another rank would have sent were taken to be what this one has
    assumes_objects: bool


class RecordedRun(Struct, frozen=True, kw_only=True, tag="recorded"):
    """What the job asked of the allocator."""

    events: tuple[TimelineEvent, ...]
    #: by block id
    labels: tuple[Label, ...]
    #: ids of blocks that the job can do without, see ``Timeline``
    dispensable: frozenset[int]
    #: in the order of events
    possible_workspaces: tuple[PossibleWorkspace, ...] = ()
    phases: tuple[PhaseStart, ...]
    #: streams that stand for private pools, see ``Timeline``
    private_streams: frozenset[int] = frozenset()
    #: what the real allocator counted, under the keys of ``torch.cuda.memory_stats()``
    memory_stats: dict[str, int]
    #: the allocator's settings in this run
    alloc_conf: str
    num_parameters: int
    #: results whose size depends on data that is not known here: nonzero, unique, boolean masks
    num_data_sized_results: int
    versions: dict[str, str]
    #: of GPUs that PyTorch was built for
    architectures: tuple[str, ...]
    #: ``torch.backends.cudnn.benchmark`` at the end
    cudnn_benchmark: bool
    #: what it uses NCCL for
    communication: NcclUse = NO_COMMUNICATION
    work_areas: WorkAreas = WorkAreas()
    #: of the job, each with the event that it begins at; those of ``JobPhase``
    stages: tuple[tuple[int, str], ...] = ()
    #: events at which training steps ended
    steps: tuple[int, ...] = ()
    #: None: there is only one
    ranks: SeenRanks | None = None
    #: devices that were used besides its own, and the most bytes that were allocated there
    other_devices: tuple[tuple[int, int], ...] = ()
    #: what else was seen of it, by name
    notes: tuple[str, ...] = ()
    #: of a distributed job: ranks that are given something else than this one
    unlike_ranks: tuple[int, ...] = ()
    #: how long the job ran
    seconds: float


class Profiled(Struct, frozen=True, kw_only=True, tag="profiled"):
    """The trace is written."""

    num_parameters: int
    versions: dict[str, str]
    #: of GPUs that PyTorch was built for; not looked at in a script
    architectures: tuple[str, ...] = ()
    #: optimizer steps in the trace
    num_steps: int = 0


class Failed(Struct, frozen=True, kw_only=True, tag="failed"):
    """There is no answer: the error that was raised, as far as it can be sent."""

    code: str
    message: str
    fault: Fault
    mistakes: tuple[Mistake, ...] = ()

    @classmethod
    def of(cls, error: MemgateError) -> Failed:
        """Keep the parts of an error that can be sent."""
        return cls(
            code=error.code, message=error.message, fault=error.fault, mistakes=error.mistakes
        )

    def error(self) -> MemgateError:
        """Rebuild the error, with its own class."""
        return restore_error(self.code, self.message, self.fault, self.mistakes)
