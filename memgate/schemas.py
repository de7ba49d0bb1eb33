"""What requests and answers look like, where the library's own types are not enough."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

from memgate.contract import EngineName, JobRecord, JobState, Priority, Work, WorkKind
from memgate.errors import Fault
from memgate.gpus import GpuRequest, GpuSpec, find_reports, list_machines
from memgate.jobspec import INFERENCE_OF_A_JOB, AllocatorText, JobSpec
from memgate.mistakes import Mistake, RuleError

_EXAMPLE_JOB: Any = {
    "model": {"source": "torchvision", "name": "resnet50"},
    "input": {"shape": [3, 224, 224]},
    "batch_size": 32,
    "optimizer": {"name": "Adam"},
}

_EXAMPLE_LANGUAGE_JOB: Any = {
    "model": {"source": "transformers", "name": "gpt2"},
    "input": {"sequence_length": 512},
    "batch_size": 4,
    "optimizer": {"name": "AdamW", "kwargs": {"lr": 0.0001}},
    "precision": "amp-bf16",
}

#: of an answer to which advice may still be added
ADVICE_HEADER = "X-Memgate-Advice"
PENDING = "pending"

#: what the id of a job looks like
JOB_ID = "^[0-9a-f]{32}$"


class _Create(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


def _named(gpu: object) -> object:
    return {"name": gpu} if isinstance(gpu, str) else gpu


Gpu = Annotated[
    GpuRequest,
    BeforeValidator(_named, json_schema_input_type=str | GpuRequest),
    Field(description="A GPU of the catalogue, or one that is described.", examples=["rtx-3060"]),
]


class EstimateCreate(_Create):
    """Will this job fit on that GPU?"""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        json_schema_extra={
            "examples": [
                {"job": _EXAMPLE_JOB, "gpu": "rtx-3060"},
                {
                    "job": _EXAMPLE_LANGUAGE_JOB,
                    "gpu": {"memory_bytes": 12510167040, "compute_capability": "8.6"},
                    "engine": "phantom",
                    "priority": "high",
                },
            ]
        },
    )

    job: JobSpec
    gpu: Gpu
    engine: EngineName = "auto"
    priority: Priority = Priority.NORMAL
    inference: Annotated[bool, Field(description="True only for an uploaded trace.")] = False

    @field_validator("inference")
    @classmethod
    def _trains(cls, inference: bool) -> bool:
        if inference:
            raise RuleError(INFERENCE_OF_A_JOB, "leave it out, or upload a trace")
        return inference

    def work(self, kind: WorkKind = WorkKind.ESTIMATE) -> Work:
        """Return the question."""
        return Work(kind=kind, job=self.job, gpu=self.gpu, engine=self.engine)


class TraceEstimateCreate(_Create):
    """Will the job of an uploaded trace, memory snapshot or timeline file fit on that GPU?"""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        json_schema_extra={
            "examples": [{"gpu": "rtx-3060", "allocator": "expandable_segments:True"}]
        },
    )

    gpu: Gpu
    allocator: AllocatorText = ""
    device: Annotated[int, Field(ge=0)] | None = None
    """Of several in a snapshot or a trace of GPUs; otherwise the worst of them decides."""
    inference: bool = False
    """The job of a trace does not train: without a backward pass it may then be admitted."""
    priority: Priority = Priority.NORMAL

    def work(self, trace: str) -> Work:
        """Return the question about what is in the store."""
        return Work(
            kind=WorkKind.ESTIMATE,
            trace=trace,
            device=self.device,
            gpu=self.gpu,
            allocator=self.allocator,
            inference=self.inference,
        )


class FitCreate(_Create):
    """On which GPUs of the catalogue does this job fit?"""

    model_config = ConfigDict(
        extra="forbid", frozen=True, json_schema_extra={"examples": [{"job": _EXAMPLE_JOB}]}
    )

    job: JobSpec
    engine: EngineName = "auto"
    priority: Priority = Priority.NORMAL

    def work(self) -> Work:
        """Return the question."""
        return Work(kind=WorkKind.FIT, job=self.job, engine=self.engine)


class TimelineFitCreate(_Create):
    """On which GPUs of the catalogue does the job of an uploaded timeline file fit?"""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        json_schema_extra={"examples": [{"allocator": "expandable_segments:True"}]},
    )

    allocator: AllocatorText = ""
    priority: Priority = Priority.NORMAL

    def work(self, trace: str) -> Work:
        """Return the question about what is in the store."""
        return Work(kind=WorkKind.FIT, trace=trace, allocator=self.allocator)


class JobList(BaseModel):
    """A page of jobs, the newest first."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    jobs: list[JobRecord]
    next_offset: int | None
    """Where the next page begins; null if there is none."""


class GpuRead(BaseModel):
    """A GPU of the catalogue."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    name: str
    product: str
    memory_bytes: int
    """The total that answers use: the lowest that was reported."""
    compute_capability: str
    multiprocessors: int
    lowest_reported_bytes: int
    highest_reported_bytes: int
    """ECC, the driver's version and the operating system change what a job sees."""
    source: str
    """Where these figures are from."""
    machines: list[str]
    """Machine types of clouds that have it; a question may name one instead."""

    @classmethod
    def of(cls, gpu: GpuSpec) -> Self:
        """Describe a GPU of the catalogue."""
        reports = find_reports(gpu)
        return cls(
            name=gpu.name,
            product=gpu.product,
            memory_bytes=gpu.memory_bytes,
            compute_capability=gpu.capability,
            multiprocessors=gpu.multiprocessors,
            lowest_reported_bytes=reports.lowest_bytes,
            highest_reported_bytes=reports.highest_bytes,
            source=reports.source,
            machines=list_machines(gpu.name),
        )


class Accepted(BaseModel):
    """A question that is not answered yet."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    id: str
    state: JobState


class Problem(BaseModel):
    """Why there is no answer: RFC 9457."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    type: str
    """Where the code is explained, relative to this service."""
    title: str
    status: int
    code: str
    """Stable; the page /docs/errors lists all of them."""
    detail: str
    fault: Annotated[
        Fault,
        Field(
            description="Whose fault it is, and so what to do. `caller`: fix the question. `job`:"
            " fix the job, which would fail on a GPU, too. `unsupported`: memgate cannot run this"
            " kind of job, which says nothing about it. `operator`: something is not installed or"
            " not configured. `passing`: ask again."
        ),
    ]
    job: str | None = None
    """The job that has no answer, if there is one."""
    errors: list[Mistake] = []
    """Each thing that is wrong, up to a limit."""


class PeakOwner(StrEnum):
    """Whose peak an outcome is about."""

    ALLOCATOR = "allocator"
    """What PyTorch reserved (``torch.cuda.max_memory_reserved()``)."""
    PROCESS = "process"
    """What the driver shows for the process, with its CUDA context."""
    DEVICE = "device"
    """What the driver shows for the whole GPU: others may be on it."""


class OutcomeCreate(_Create):
    """What a finished job really took."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        json_schema_extra={
            "examples": [{"job": "0" * 32, "measured_peak_bytes": 4_100_000_000}],
        },
    )

    job: Annotated[str, Field(pattern=JOB_ID, description="Id of the estimate's job.")]
    measured_peak_bytes: Annotated[int, Field(strict=True, ge=1, le=1 << 50)]
    """As the driver shows it for the process; or the allocator's, with ``is_reserved_only``."""
    is_reserved_only: bool = False
    """The measured figure is what the allocator reserved, without the CUDA context."""
    owner: PeakOwner | None = None
    """Whose peak it is; unless said the process's, or with ``is_reserved_only`` the allocator's."""
    driver: Annotated[str, Field(max_length=40, pattern=r"^[0-9][0-9.]*$")] | None = None
    """The version of NVIDIA's driver: what contexts take is learned for each."""
    run: Annotated[str, Field(min_length=1, max_length=100)] | None = None
    """The run's name, such as Slurm's job id: a second outcome of a run is not counted."""
    ran_out: bool = False
    """It ran out of memory."""
    gpu_product: Annotated[str, Field(min_length=1, max_length=100)] | None = None

    @model_validator(mode="after")
    def _has_one_owner(self) -> Self:
        if self.is_reserved_only and self.owner not in (None, PeakOwner.ALLOCATOR):
            raise RuleError(
                "is_reserved_only says that it is the allocator's peak, and owner that it is the"
                f" {self.owner}'s",
                "leave is_reserved_only out",
            )
        return self

    @property
    def whose(self) -> PeakOwner:
        """Whose peak it is."""
        if self.owner is not None:
            return self.owner
        return PeakOwner.ALLOCATOR if self.is_reserved_only else PeakOwner.PROCESS


class AccuracyGroup(BaseModel):
    """How accurate we were about some jobs."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    num_outcomes: int
    median_relative_error: float | None
    share_beyond_10_percent: float | None
    share_within_bound: float | None
    """Measured peaks that stayed below the upper bound predicted for them."""


class LessonRead(BaseModel):
    """What outcomes of one GPU, driver and runtime teach about the CUDA context."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    gpu: str
    """Its name in the catalogue."""
    driver: str
    """NVIDIA's driver there."""
    runtime: str
    """The libraries that the jobs ran with."""
    num_outcomes: int
    """Those that say what a process held."""
    num_outliers: int
    """Too far from the others to be followed."""
    outliers: list[str]
    """The newest of their jobs."""
    num_keys: int
    """Callers that are followed; no one counts for more than a third."""
    num_jobs: int
    """Different jobs that are followed."""
    context: dict[str, int] | None
    """What to write as ``context`` of the GPU in ``MEMGATE_GPUS``; null if there is too little to
    learn from."""
    is_drifting: bool
    """Many of the newest do not agree with what was learned, or with what is documented."""


class AccuracyRead(BaseModel):
    """Predicted against measured."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    all: AccuracyGroup
    by_gpu: dict[str, AccuracyGroup]
    by_model: dict[str, AccuracyGroup]
    lessons: list[LessonRead] = []
    """What outcomes teach about CUDA contexts; an operator follows it, or does not."""
