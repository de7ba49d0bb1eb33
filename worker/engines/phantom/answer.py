"""What passes between the engine and the host that runs jobs: a line of JSON each way, no torch."""

from __future__ import annotations

from msgspec import Struct

from memgate.timeline import Label, TimelineEvent


class Request(Struct, frozen=True, kw_only=True):
    """Run this job."""

    #: a ``JobSpec`` as JSON
    job: str
    #: what describes the device and the allocator's settings, for the job's process alone
    environment: dict[str, str]
    timeout_seconds: int


class Answer(Struct, frozen=True, kw_only=True, tag="answer"):
    """What the job asked of the allocator."""

    events: tuple[TimelineEvent, ...]
    #: by block id
    labels: tuple[Label, ...]
    #: what the real allocator counted, under the keys of ``torch.cuda.memory_stats()``
    memory_stats: dict[str, int]
    num_parameters: int
    #: results whose size depends on data, which is not there: nonzero, unique, boolean masks
    num_data_sized_results: int
    versions: dict[str, str]
    seconds: dict[str, float]


class BadJob(Struct, frozen=True, kw_only=True, tag="bad_job"):
    """The job cannot be run as it is written; the caller can mend it."""

    message: str


class Crash(Struct, frozen=True, kw_only=True, tag="crash"):
    """The job's process failed; the message is the last it said."""

    message: str
    #: calls of NVIDIA's libraries that the phantom refused before
    unmodelled: tuple[str, ...] = ()
