"""The answer of every door: an estimate."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, computed_field

from memgate.calibration import Bounds, find_bounds
from memgate.decision import Decision
from memgate.explanation import Explanation, Sizes, describe_peak, explain
from memgate.gpus import GpuSpec
from memgate.margins import Family
from memgate.nccl import NO_MEMORY, MemoryRange
from memgate.workspaces import WorkspaceRange

#: reasons that the headline of an explanation already states
_IN_THE_HEADLINE = {"FITS", "DOES_NOT_FIT", "WITHIN_THE_MARGIN"}

#: for a rejected job: a batch that fits, if there was no time to find the largest
SMALLER_BATCH_FITS = "SMALLER_BATCH_FITS"

#: the job was recorded for a GPU on which it may do something else than on this one
RECORDED_FOR_ANOTHER_GPU = "RECORDED_FOR_ANOTHER_GPU"
SIZES_DEPEND_ON_DATA = "SIZES_DEPEND_ON_DATA"

#: the smallest memory in which the job runs was not searched for to the end
SEARCH_STOPPED = "SEARCH_STOPPED"

#: what an answer says itself: a recording does not bring such reasons along
ESTIMATE_CODES = frozenset(
    {*_IN_THE_HEADLINE, SMALLER_BATCH_FITS, RECORDED_FOR_ANOTHER_GPU, SEARCH_STOPPED}
)


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)


class Reason(_Part):
    """Why a decision was taken."""

    code: str
    message: str


class Oom(_Part):
    """Where the job would die."""

    event: int
    message: str
    step: int | None = None
    """Of a job whose batches vary: which training step that is, counted from 1."""
    batch: str | None = None
    """And how large the samples of its batch are."""


class RecordingSummary(_Part):
    """What was recorded, of an answer about a timeline file."""

    command: str
    """As a person would type it; empty if it was a job spec."""
    gpu: str
    """The GPU that it was recorded for."""
    num_steps: int
    """Training steps in it."""
    batches: list[str]
    """Shapes of the batches that the job took."""
    memgate: str
    """The version of memgate that recorded it."""


class CommunicationMemory(_Part):
    """What NCCL takes of the GPU for itself, outside PyTorch's allocator."""

    low_bytes: int
    """With the least that its arithmetic allows for."""
    expected_bytes: int
    """On a machine as such GPUs are usually built into."""
    high_bytes: int
    """With everything connected, on the widest wiring."""


class Bound(_Part):
    """How far the estimate may be off, and where that is known from."""

    coverage: float
    """The share of jobs that must stay below ``needs_bytes``: ``MEMGATE_COVERAGE``."""
    margin: float
    """By what share the estimate may be too low."""
    margin_of: str
    """The measured runs that the margin is from: a family of jobs on a GPU, or all of them."""
    num_scores: int
    """How many runs those are."""
    num_models: int
    """Of how many models."""
    family: Family
    """Jobs with convolutions, or without: their estimates err for other reasons."""
    workspaces_less_bytes: int
    """How much less it may need with workspaces of cuDNN that are not known."""
    workspaces_more_bytes: int
    """How much more."""
    context_low_bytes: int
    """The least that the CUDA context may take."""
    context_high_bytes: int
    """The most."""
    context_from: str
    """Where the range of the CUDA context is from."""


def describe_bounds(bounds: Bounds) -> Bound:
    """Put into an answer how far it may be off."""
    return Bound(
        coverage=bounds.coverage,
        margin=bounds.margin.ratio,
        margin_of=bounds.margin.group,
        num_scores=bounds.margin.num_scores,
        num_models=bounds.margin.num_models,
        family=bounds.family,
        workspaces_less_bytes=bounds.workspaces.less_bytes,
        workspaces_more_bytes=bounds.workspaces.more_bytes,
        context_low_bytes=bounds.context.low_bytes,
        context_high_bytes=bounds.context.high_bytes,
        context_from=bounds.context.source,
    )


class RankEntry(_Part):
    """One rank of a distributed job: a process with a GPU of its own."""

    rank: int
    """Its number, from 0."""
    needs_bytes: int
    """What it needs on its GPU, as of the estimate."""
    peak_bytes: int
    """What it would take with ample memory."""
    decision: Decision
    """Whether it fits on its GPU."""


class Estimate(_Part):
    """Will the job fit, how much does it need, and what for. Sizes are bytes."""

    decision: Decision
    engine: str
    gpu: str
    """Its name, as the catalogue or the caller has it."""
    needs_bytes: int
    """The headline: what the job needs, with the measured margin and the largest known CUDA
    context. It is compared with ``available_bytes``."""
    least_bytes: int
    """What it needs with no margin and the smallest context."""
    capacity_bytes: int
    """What the GPU has."""
    available_bytes: int
    """``capacity_bytes`` less what others already use."""
    headroom_bytes: int
    """``available_bytes`` less ``needs_bytes``."""
    peak_bytes: int
    """What the job would take with ample memory: segments, context, and of a job on several GPUs
    what NCCL takes."""
    peak_reserved_bytes: int
    peak_allocated_bytes: int
    peak_on_gpu_bytes: int
    """What the driver would show on this GPU: near its capacity the allocator gives back what it
    has cached, and a job that does not fit dies."""
    peak_reserved_on_gpu_bytes: int
    context_bytes: int
    bound: Bound | None = None
    """How far all of this may be off; null in answers of older versions."""
    communication: CommunicationMemory | None = None
    """What NCCL takes, if the job uses it: what is expected is part of the peak, the least of
    ``least_bytes`` and the most of ``needs_bytes``."""
    required_bytes: int
    """The smallest device memory in which the job runs, and runs in every larger one."""
    upper_bound_bytes: int
    """The older name of ``needs_bytes``."""
    breakdown: dict[str, int]
    """At the peak with ample memory; adds up to ``peak_bytes``."""
    reasons: list[Reason]
    oom: Oom | None
    """Where it would die on this GPU; null if it would not."""
    fits_on: list[str]
    """GPUs of the catalogue that admit the job; none if something about it is in doubt."""
    largest_batch_size: int | None = None
    """The batch size that would be admitted, if this one is not and it was found in time."""
    timings_ms: dict[str, int]
    """Filled in at the door. ``run`` is 0 where an earlier run was replayed."""
    runtime: str
    versions: dict[str, str]
    phases: dict[str, int] = {}
    """Of a command or a recorded job: the most that is allocated in each phase, ``load``,
    ``train``, ``evaluate`` and ``save``, with the context; those that were not seen are missing."""
    world_size: int = 1
    """How many processes the job has, each with a GPU of its own."""
    ranks: list[RankEntry] = []
    """Of a distributed job: the ranks that were run. The worst decides, and everything else in the
    answer is about it; the ranks that are missing here do what one of these does."""
    traffic: dict[str, int] = {}
    """Of a distributed job: bytes that a rank exchanges with the others in a training step, by
    kind (``all_reduce``, ``all_gather``...); whole messages, whatever way they take."""
    recording: RecordingSummary | None = None
    """What was recorded, if a timeline file was asked about."""
    id: str | None = None
    """Of the job that answered, if a server did."""
    page: str | None = None
    """Where a person can look at the answer: a URL, or a path on the server."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def explanation(self) -> Explanation:
        """What all of this says, in the words of every door."""
        codes = {*_IN_THE_HEADLINE, SMALLER_BATCH_FITS}
        return explain(
            self.decision,
            self.gpu,
            Sizes(
                self.needs_bytes,
                self.least_bytes,
                self.available_bytes,
                self.capacity_bytes - self.available_bytes,
                has_nccl=self.communication is not None,
            ),
            why=[reason.message for reason in self.reasons if reason.code not in codes],
            largest_batch_size=self.largest_batch_size,
            smaller_batch=self.why(SMALLER_BATCH_FITS),
            fits_on=self.fits_on,
        )

    def bounds_on(self, gpu: GpuSpec) -> Bounds:
        """Return how far it may be off on a GPU, to decide about that with the same run."""
        if self.bound is None:
            return find_bounds(gpu, runtime=self.runtime)
        less, more = self.bound.workspaces_less_bytes, self.bound.workspaces_more_bytes
        return find_bounds(
            gpu,
            runtime=self.runtime,
            family=self.bound.family,
            workspaces=WorkspaceRange(less, more),
        )

    @property
    def communication_range(self) -> MemoryRange:
        """What NCCL takes; nothing if the job does not use it."""
        if self.communication is None:
            return NO_MEMORY
        return MemoryRange(**self.communication.model_dump())

    @property
    def peak_text(self) -> str:
        """What ``peak_bytes`` is, in the words of every door."""
        return describe_peak(
            self.peak_bytes, self.needs_bytes, has_nccl=self.communication is not None
        )

    def why(self, code: str) -> str:
        """Return the message of the reason with a code, nothing if there is none."""
        return next((reason.message for reason in self.reasons if reason.code == code), "")


class FitEntry(_Part):
    """One GPU of the catalogue."""

    gpu: str
    capacity_bytes: int
    decision: Decision
    needs_bytes: int | None
    upper_bound_bytes: int | None
    headroom_bytes: int | None
    reason: Reason
    run_for: str | None = None
    """The GPU whose run decided, if not its own: one of the same generation that needs about the
    same, and that was far from the limit here."""

    @classmethod
    def of(cls, gpu: GpuSpec, said: Estimate, run_for: str | None = None) -> FitEntry:
        """Keep the parts of an estimate that a table shows."""
        return cls(
            gpu=gpu.name,
            capacity_bytes=gpu.memory_bytes,
            decision=said.decision,
            needs_bytes=said.needs_bytes,
            upper_bound_bytes=said.upper_bound_bytes,
            headroom_bytes=said.headroom_bytes,
            reason=said.reasons[0],
            run_for=run_for,
        )

    @classmethod
    def unknown(cls, gpu: GpuSpec, reason: Reason) -> FitEntry:
        """Say why nothing is known about a GPU."""
        return cls(
            gpu=gpu.name,
            capacity_bytes=gpu.memory_bytes,
            decision=Decision.UNKNOWN,
            needs_bytes=None,
            upper_bound_bytes=None,
            headroom_bytes=None,
            reason=reason,
        )


class Fit(_Part):
    """Every GPU of the catalogue, the smallest first."""

    gpus: list[FitEntry]
    smallest: str | None
    """The smallest that admits the job."""
    id: str | None = None
    """Of the job that answered, if a server did."""
    page: str | None = None
    """Where a person can look at the answer: a URL, or a path on the server."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def headline(self) -> str:
        """The answer in one line, in the words of every door."""
        if self.smallest is None:
            return f"fits on none of {len(self.gpus)} GPUs"
        num_fitting = sum(entry.decision is Decision.ADMIT for entry in self.gpus)
        return f"fits on {num_fitting} of {len(self.gpus)} GPUs, the smallest is {self.smallest}"
