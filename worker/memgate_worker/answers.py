"""Work -> its answer, from engines that are kept warm and timelines of earlier questions.

Nothing here knows about queues; ``tasks`` does. What makes two runs the same is in
``memgate.run_key``.
"""

from __future__ import annotations

import io
import math
import time
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial

from pydantic import BaseModel

from memgate.contract import Work, WorkKind
from memgate.decision import Decision
from memgate.errors import InputError, TimeLimitError, TraceExpiredError
from memgate.gpus import CATALOGUE, GpuSpec
from memgate.jobspec import JobSpec
from memgate.max_batch import MaxBatch
from memgate.report import Estimate, Fit, Reason
from memgate.run_key import EngineIdentity, RunKey
from memgate.views import TimelineView, view_timeline
from memgate_worker.dividing import DividedRun
from memgate_worker.engines.identity import identify_engine
from memgate_worker.engines.registry import Engine, start_engine
from memgate_worker.engines.traced import TracedJob
from memgate_worker.hub import ModelHub
from memgate_worker.queue.store import JobStore
from memgate_worker.runtimes.runtime import Runtime, find_runtime
from memgate_worker.settings import WorkerSettings
from memgate_worker.timelines import pack, unpack
from memgate_worker.timings import time_estimate
from memgate_worker.uploads.client import fit_upload, judge_upload
from memgate_worker.uploads.host import UploadHost
from memgate_worker.uploads.question import UploadFitQuestion, UploadQuestion
from memgate_worker.verdicts import fit_everywhere, largest_batch

#: how many times the time for advice its last run may go on
_MORE_FOR_ADVICE = 9

#: what may pass before the first run of a question begins
_FIRST_SECONDS = 1.0


class WorkAnswer(BaseModel):
    """What a caller gets, and the picture of it."""

    result: Estimate | Fit | MaxBatch
    view: TimelineView | None = None
    wants_advice: bool = False
    """It is worth asking ``advise`` which smaller batch would be admitted."""


class EngineAnswerer:
    """Answers questions one by one. A context manager: it holds processes."""

    def __init__(self, store: JobStore, settings: WorkerSettings) -> None:
        self._store = store
        self._settings = settings
        self._hub = ModelHub(settings.hub, store)
        #: by name, and by the identity of the runtime they were started with
        self._engines: dict[tuple[str, EngineIdentity], Engine] = {}
        self._started = ExitStack()
        self._uploads = UploadHost()
        #: when the time for the question is over, as ``time.monotonic`` has it
        self._ends_at = math.inf

    def __enter__(self) -> EngineAnswerer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop_engines()

    def stop_engines(self) -> None:
        """Stop all processes; they are started again when they are needed."""
        self._uploads.stop()
        self._engines.clear()
        self._started.close()

    def drop_work(self) -> None:
        """Stop what still runs for a question that was interrupted; engines stay warm."""
        self._uploads.stop()
        for engine in self._engines.values():
            engine.stop_job()

    def warm_up(self, job: JobSpec) -> None:
        """Run a small job, so that the next one finds everything imported."""
        runtime = find_runtime(job.runtime)
        engine = self._engine("auto", runtime, identify_engine(runtime))
        self._run(job, CATALOGUE["a100-40"], engine)

    def answer(self, work: Work) -> WorkAnswer:
        """Answer a question without advice, so that callers need not wait for advice.

        Raises:
            MemgateError: if there is no answer; its ``fault`` says whose fault that is.
        """
        self._ends_at = time.monotonic() + self._settings.job_timeout_seconds
        if work.kind is WorkKind.FIT:
            return WorkAnswer(result=self._fit(work))
        if work.kind is WorkKind.MAX_BATCH:
            return WorkAnswer(result=self._max_batch(work))
        return self._estimate(work)

    def _estimate(self, work: Work) -> WorkAnswer:
        if work.job is None:
            return self._judge_upload(work)
        target = work.target
        said, traced, needs = time_estimate(partial(self._trace, work, target.gpu), target)
        oom_event = said.oom.event if said.oom else None
        return WorkAnswer(
            result=said,
            view=view_timeline(traced.timeline, needs.ample, oom_event=oom_event),
            wants_advice=said.decision is Decision.REJECT and self._settings.advice_seconds > 0,
        )

    def _judge_upload(self, work: Work) -> WorkAnswer:
        question = UploadQuestion(
            target=work.target,
            alloc_conf=work.allocator,
            device=work.device,
            inference=work.inference,
            max_bytes=self._settings.max_trace_bytes,
            max_seconds=self._settings.upload_timeout_seconds,
        )
        judged = judge_upload(self._load_upload(work), question, self._uploads)
        return WorkAnswer(result=judged.estimate, view=judged.view)

    def _load_upload(self, work: Work) -> io.BytesIO:
        assert work.trace is not None
        data = self._store.load_trace(work.trace)
        if data is None:
            raise TraceExpiredError(
                "the upload is no longer kept (MEMGATE_TRACE_TTL_SECONDS); upload it again"
            )
        return io.BytesIO(data)

    def advise(self, work: Work, said: Estimate) -> Estimate | None:
        """Add the batch that would be admitted to a rejection; None if none was found in time.

        Raises:
            MemgateError: if a smaller batch cannot be run.
        """
        assert work.job is not None
        target = work.target
        deadline = time.monotonic() + self._settings.advice_seconds
        admitted: list[int] = []

        def note(batch_size: int, said: Estimate) -> None:
            if said.decision == "admit":
                admitted.append(batch_size)

        # A run that has begun may end: large models need more than the usual time for one.
        self._ends_at = deadline + _MORE_FOR_ADVICE * self._settings.advice_seconds
        found = None
        with suppress(TimeLimitError):  # what was found until then stands
            found = largest_batch(
                partial(self._run_of, work),
                work.job,
                target,
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

    def _max_batch(self, work: Work) -> MaxBatch:
        if work.job is None:
            raise InputError("max-batch needs a job spec: an upload has the batch size it has")
        found = largest_batch(partial(self._run_of, work), work.job, work.target)
        assert found is not None
        return found

    def _fit(self, work: Work) -> Fit:
        if work.job is None:
            question = UploadFitQuestion(
                alloc_conf=work.allocator,
                max_bytes=self._settings.max_trace_bytes,
                max_seconds=self._settings.upload_timeout_seconds,
            )
            return fit_upload(self._load_upload(work), question, self._uploads)
        return fit_everywhere(partial(self._run_of, work), work.job, engine=work.engine)

    def _run_of(self, work: Work, job: JobSpec, gpu: GpuSpec) -> TracedJob:
        return self._trace(work.model_copy(update={"job": job}), gpu)

    def _trace(self, work: Work, gpu: GpuSpec) -> TracedJob:
        assert work.job is not None
        divided = DividedRun.of(work.job, work.target if work.gpu else None)
        found = self._hub.complete(divided.job)
        runtime = find_runtime(found.job.runtime)
        made_by = identify_engine(runtime)
        key = RunKey.of(found.job, gpu, engine=work.engine, made_by=made_by)
        if (known := self._load(key)) is not None:
            return divided.mark(found.mark(known.again(found.job.allocator)))
        traced = self._run(found.job, gpu, self._engine(work.engine, runtime, made_by))
        self._store.save_timeline(key.digest(), pack(key, traced))
        return divided.mark(found.mark(traced))

    def _load(self, key: RunKey) -> TracedJob | None:
        packed = self._store.load_timeline(key.digest())
        known = None if packed is None else unpack(key, packed)
        self._store.count("timelines", "no" if known is None else "yes")
        return known

    def _engine(self, name: str, runtime: Runtime, made_by: EngineIdentity) -> Engine:
        """Return an engine for the runtime as it is now, started when it is first needed."""
        started = {other for _, other in self._engines if other.runtime.name == runtime.name}
        if started - {made_by}:  # libraries, or cuDNN, were installed since it was started
            self.stop_engines()
        if (name, made_by) not in self._engines:
            engine = self._started.enter_context(start_engine(name, runtime))
            self._engines[name, made_by] = engine
        return self._engines[name, made_by]

    def _run(self, job: JobSpec, gpu: GpuSpec, engine: Engine) -> TracedJob:
        """Run a job, in what is left of the time for the question."""
        limits = self._settings.run_limits
        left = self._ends_at - time.monotonic()
        try:
            if left <= 0:
                raise TimeLimitError("there is no time left for another run")
            return engine.trace(job, gpu, limits=replace(limits, seconds=min(limits.seconds, left)))
        except TimeLimitError as error:
            if left >= limits.seconds - _FIRST_SECONDS:  # the first run alone took all of it
                raise
            raise TimeLimitError(
                f"the runs for this question took longer than {limits.seconds:g} s together, which"
                " is memgate's limit and not the job's fault; ask about one GPU and one batch size,"
                " or have the operator allow more (MEMGATE_JOB_TIMEOUT_SECONDS)"
            ) from error
