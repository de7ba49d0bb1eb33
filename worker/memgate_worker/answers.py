"""Work -> its answer: the engines, kept warm, and the timelines that earlier questions left.

Nothing here knows of queues; ``tasks`` does.
"""

from __future__ import annotations

import io
import time
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from pydantic import BaseModel

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.replay import replay
from memgate.capacity import AMPLE_BYTES
from memgate.contract import Work, WorkKind
from memgate.errors import InputError, TraceExpiredError
from memgate.gpus import CATALOGUE, GpuSpec, GpuTarget, parse_gpu
from memgate.jobspec import JobSpec
from memgate.max_batch import MaxBatch
from memgate.report import Estimate, Fit, Reason
from memgate.views import TimelineView, view_timeline
from memgate_worker.engines.profile.analysis import analyze_trace
from memgate_worker.engines.registry import Engine, start_engine
from memgate_worker.engines.traced import TracedJob
from memgate_worker.queue.store import JobStore
from memgate_worker.runtimes.runtime import find_runtime
from memgate_worker.settings import WorkerSettings
from memgate_worker.timelines import pack, run_name, unpack
from memgate_worker.timings import time_estimate
from memgate_worker.verdicts import fit_everywhere, largest_batch


class Answer(BaseModel):
    """What a caller gets, and the picture of it."""

    result: Estimate | Fit | MaxBatch
    view: TimelineView | None = None
    wants_advice: bool = False
    """It is worth asking ``advise`` which smaller batch would be admitted."""


class Answerer:
    """Answers questions one by one. A context manager: it holds processes."""

    def __init__(self, store: JobStore, settings: WorkerSettings) -> None:
        self._store = store
        self._settings = settings
        self._engines: dict[tuple[str, str], Engine] = {}
        self._started = ExitStack()

    def __enter__(self) -> Answerer:
        return self

    def __exit__(self, *_: object) -> None:
        """End the engines; they are started again when they are needed."""
        self._engines.clear()
        self._started.close()

    def warm_up(self, job: JobSpec) -> None:
        """Run a small job, so that the next one finds everything imported."""
        self._run(job, CATALOGUE["a100-40"], "auto")

    def answer(self, work: Work) -> Answer:
        """Answer a question, without advice: nobody should wait for that who needs the decision.

        Raises:
            MemgateError: if there is no answer; its ``fault`` says whose fault that is.
        """
        if work.kind is WorkKind.FIT:
            return Answer(result=self._fit(work))
        if work.kind is WorkKind.MAX_BATCH:
            return Answer(result=self._max_batch(work, _target(work)))
        return self._estimate(work, _target(work))

    def _estimate(self, work: Work, target: GpuTarget) -> Answer:
        said, traced = time_estimate(partial(self._trace, work, target.gpu), target)
        ample = replay(traced.timeline, parse_alloc_conf(traced.alloc_conf), AMPLE_BYTES)
        has_smaller = said.decision == "reject" and work.job is not None
        return Answer(
            result=said,
            view=view_timeline(
                traced.timeline, ample, oom_event=said.oom.event if said.oom else None
            ),
            wants_advice=has_smaller and self._settings.advice_seconds > 0,
        )

    def advise(self, work: Work, said: Estimate) -> Estimate | None:
        """Add to a rejection which batch would be admitted; None if none was found in time.

        Raises:
            MemgateError: if a smaller batch cannot be run.
        """
        assert work.job is not None
        target = _target(work)
        deadline = time.monotonic() + self._settings.advice_seconds
        admitted: list[int] = []

        def note(batch_size: int, said: Estimate) -> None:
            if said.decision == "admit":
                admitted.append(batch_size)

        found = largest_batch(
            partial(self._run_of, work),
            work.job,
            target,
            known=said,
            goes_on=lambda: time.monotonic() < deadline,
            on_said=note,
        )
        if not admitted:
            return None
        more = "" if found is not None else "; there was no time to look for a larger one"
        reason = Reason(
            code="SMALLER_BATCH_FITS",
            message=f"batch size {max(admitted)} would be admitted on {target.gpu.name}{more}",
        )
        largest = None if found is None else found.batch_size
        return said.model_copy(
            update={"reasons": [*said.reasons, reason], "largest_batch_size": largest}
        )

    def _max_batch(self, work: Work, target: GpuTarget) -> MaxBatch:
        if work.job is None:
            raise InputError("max-batch needs a job spec: a trace has the batch size it has")
        found = largest_batch(partial(self._run_of, work), work.job, target)
        assert found is not None
        return found

    def _fit(self, work: Work) -> Fit:
        if work.job is None:
            raise InputError("fit needs a job spec; ask about a trace GPU by GPU")
        return fit_everywhere(partial(self._run_of, work), work.job)

    def _run_of(self, work: Work, job: JobSpec, gpu: GpuSpec) -> TracedJob:
        return self._trace(work.model_copy(update={"job": job}), gpu)

    def _trace(self, work: Work, gpu: GpuSpec) -> TracedJob:
        if work.job is None:
            return self._analyze(work, gpu)
        runtime = find_runtime(work.job.runtime).name
        name = run_name(work.job, gpu, work.engine, runtime)
        packed = self._store.load_timeline(name)
        self._store.count("timelines", "no" if packed is None else "yes")
        if packed is not None:
            return replace(unpack(packed), alloc_conf=work.job.allocator, seconds=0.0)
        traced = self._run(work.job, gpu, work.engine)
        self._store.save_timeline(name, pack(traced))
        return traced

    def _run(self, job: JobSpec, gpu: GpuSpec, engine: str) -> TracedJob:
        runtime = find_runtime(job.runtime)
        key = (engine, runtime.name)
        if key not in self._engines:
            self._engines[key] = self._started.enter_context(start_engine(engine, runtime))
        return self._engines[key].trace(
            job,
            gpu,
            timeout_seconds=self._settings.job_timeout_seconds,
            host_memory_bytes=self._settings.job_memory_bytes,
        )

    def _analyze(self, work: Work, gpu: GpuSpec) -> TracedJob:
        assert work.trace is not None
        data = self._store.load_trace(work.trace)
        if data is None:
            raise TraceExpiredError(
                "the uploaded trace is no longer kept (MEMGATE_TRACE_TTL_SECONDS); upload it again"
            )
        return analyze_trace(
            io.BytesIO(data),
            gpu,
            alloc_conf=work.allocator,
            max_bytes=self._settings.max_trace_bytes,
        )


def _target(work: Work) -> GpuTarget:
    if work.gpu is None:
        raise InputError("gpu is missing: name one of the catalogue, or describe it")
    return parse_gpu(work.gpu.model_dump(exclude_none=True))
