"""A service's and a worker's end of a real queue, with something else than an engine to answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redis import Redis

from memgate.contract import JobRecord, Priority, Result, Work, WorkKind
from memgate.gpus import GpuRequest
from memgate.report import Estimate, Fit
from memgate_worker.answers import WorkAnswer
from memgate_worker.main import SteadyWorker, make_worker
from memgate_worker.queue.announcements import Announcement
from memgate_worker.queue.client import QueueClient
from memgate_worker.queue.store import JobStore
from memgate_worker.queue.watchdog import Watchdog
from memgate_worker.settings import WorkerSettings
from memgate_worker.tasks import Answerer, JobRunner, use_job_runner
from tests.builders import build_estimate


class Stub:
    """Answers what it is told to, and remembers what it was asked."""

    def __init__(
        self,
        answer: Callable[[Work], Any] = lambda _: None,
        advise: Callable[[Estimate], Estimate | None] | None = None,
    ) -> None:
        self._answer = answer
        self._advise = advise
        self.asked: list[Work] = []
        self.num_closed = 0

    def drop_work(self) -> None:
        """Count how often work was dropped."""
        self.num_closed += 1

    def answer(self, work: Work) -> WorkAnswer:
        """Answer a question; raise what the test wants raised."""
        self.asked.append(work)
        said = self._answer(work)
        if isinstance(said, Estimate):
            return WorkAnswer(result=said, wants_advice=self._advise is not None)
        if work.kind is WorkKind.ESTIMATE:  # any will do: a record holds what its kind says
            timings = {"run": 1, "trace": 1, "replay": 1, "total": 2}
            return WorkAnswer(result=build_estimate(timings_ms=timings))
        return WorkAnswer(result=Fit(gpus=[], smallest=said))

    def advise(self, work: Work, said: Estimate) -> Estimate | None:
        """Advise as the test wants it."""
        assert self._advise is not None
        return self._advise(said)


class Place:
    """A queue, and a worker of this process that works when it is told to."""

    def __init__(
        self,
        redis_url: str,
        stub: Stub | None = None,
        kind: WorkKind = WorkKind.FIT,
        **settings: Any,
    ) -> None:
        self.settings = WorkerSettings(redis_url=redis_url, **settings)
        self.client = QueueClient(self.settings)
        self.store = self.client.store
        self.redis: Any = Redis.from_url(redis_url)
        self.stub = stub or Stub()
        self.kind = kind
        self.worker: SteadyWorker = make_worker(self.settings)
        self.runner = JobRunner(
            JobStore(self.worker.connection, self.settings), self.settings, self.stub
        )
        use_job_runner(self.runner)
        self.signed_on: list[SteadyWorker] = []

    def use(self, answerer: Answerer) -> None:
        """Have something else answer."""
        use_job_runner(JobRunner(self.store, self.settings, answerer))

    def work(self) -> None:
        """Work until there is nothing to do."""
        self.worker.work(burst=True, logging_level="WARNING")

    def announce(self, announcement: Announcement | None = None) -> SteadyWorker:
        """Have one more worker sign on, with what this machine can run or with something else."""
        worker = make_worker(self.settings)
        if announcement is not None:
            worker.announce = lambda: announcement
        worker.register_birth()
        self.signed_on.append(worker)
        return worker

    def submit(self, number: int = 0, priority: Priority = Priority.NORMAL) -> JobRecord:
        """Ask a question; other numbers are other questions."""
        return self.client.submit(make_work(number, self.kind), priority)

    def read(self, number: int = 0) -> JobRecord:
        """Read what became of a question."""
        return self.client.read(make_work(number, self.kind).id())

    def watchdog(self) -> Watchdog:
        """Return one that looks when it is told to."""
        return Watchdog(self.store, self.settings)

    def lose_queue(self) -> None:
        """Lose everything that rq keeps."""
        for key in self.redis.keys("rq:*"):
            self.redis.delete(key)

    def run_out(self, job_id: str) -> None:
        """Let a lease run out now."""
        self.redis.delete(f"memgate:lease:{job_id}")

    def close(self) -> None:
        """Give the connections back."""
        self.client.close()
        self.redis.close()
        for worker in (self.worker, *self.signed_on):
            worker.connection.close()


def make_work(number: int = 0, kind: WorkKind = WorkKind.FIT) -> Work:
    """Make a question: of a trace that nobody has, as stubs look at none."""
    gpu = GpuRequest(name="t4") if kind is WorkKind.ESTIMATE else None
    return Work(kind=kind, trace=f"{number:064x}", gpu=gpu)


def answer_alone(record: JobRecord) -> Result | None:
    """Return a job's answer as the worker gave it, without the id and page that the store adds."""
    if record.result is None:
        return None
    return record.result.model_copy(update={"id": None, "page": None})
