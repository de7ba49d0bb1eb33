"""A job and the GPUs that it gets -> the job that is run, and what its run is to say."""

from __future__ import annotations

from dataclasses import dataclass, replace

from memgate.gpus import GpuTarget
from memgate.jobspec import JobSpec
from memgate.worlds import DividedJob, divide_job
from memgate_worker.engines.traced import TracedJob


@dataclass(frozen=True, slots=True)
class DividedRun:
    """A job as it is run for its GPUs."""

    _divided: DividedJob

    @classmethod
    def of(cls, job: JobSpec, target: GpuTarget | None) -> DividedRun:
        """Divide a job over the GPUs that it gets; without any, as it says itself."""
        return cls(DividedJob(job=job) if target is None else divide_job(job, target))

    @property
    def job(self) -> JobSpec:
        """The job that is run."""
        return self._divided.job

    def mark(self, traced: TracedJob) -> TracedJob:
        """Say in an answer what was assumed about the GPUs."""
        divided = self._divided
        used = divided.communication
        return replace(
            traced,
            notes=(*divided.notes, *traced.notes),
            doubts=(*divided.doubts, *traced.doubts),
            communication=used if used.communicators else traced.communication,
            other_ranks=tuple(map(self.mark, traced.other_ranks)),
        )
