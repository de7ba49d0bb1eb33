"""``Client`` and ``AsyncClient``: ask a memgate server from Python.

    from memgate import Client

    with Client("http://127.0.0.1:8080") as memgate:
        print(memgate.estimate(job, "rtx-3060").decision)

Both do what ``conversation`` says; nothing is decided here. They need an extra: ``pip install
'memgate[client]'``.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Generic, Self, TypeVar

import anyio
import httpx2

from memgate.audit import AuditEntry
from memgate.client import calls, conversation
from memgate.client.calls import Asked, Gpu, HttpCall, Job
from memgate.client.conversation import Pause, RetryPolicy, ServedEstimate, Talk
from memgate.client.servers import find_server
from memgate.contract import EngineName, JobRecord, JobState, WorkKind
from memgate.max_batch import MaxBatch
from memgate.owner import Owner
from memgate.report import Fit
from memgate.schemas import AccuracyRead, GpuRead, JobList, OutcomeCreate
from memgate.validation import validate
from memgate.views import TimelineView

#: how long to wait for an answer unless told otherwise
DEFAULT_WAIT_SECONDS = 300.0

#: tries of one request: as many as a restart of the server takes
DEFAULT_TRIES = 6

T = TypeVar("T")
Http = TypeVar("Http", httpx2.Client, httpx2.AsyncClient)


class _Connection(Generic[Http]):
    """The connection to a server, and how often to try."""

    def __init__(self, http: Http, num_tries: int) -> None:
        self._http: Http = http
        self._num_tries = max(1, num_tries)

    def _request(self, call: HttpCall) -> httpx2.Request:
        request: httpx2.Request = self._http.build_request(
            call.method,
            call.path,
            headers=call.headers,
            content=call.content,
            data=call.data,
            files=call.files,
            params=call.params,
            timeout=call.timeout_seconds,
        )
        return request

    def _policy(self, wait: float = float("inf")) -> RetryPolicy:
        return RetryPolicy(num_tries=self._num_tries, deadline=time.monotonic() + wait)

    def _get(self, kind: type[T], path: str) -> Talk[T]:
        return conversation.read(kind, HttpCall(method="GET", path=path), self._policy())

    def _estimate(
        self,
        asked: Asked,
        gpu: Gpu,
        engine: EngineName,
        allocator: str,
        device: int | None,
        inference: bool,
        wait: float,
        owner: Owner | None,
    ) -> Talk[ServedEstimate]:
        call = calls.ask_estimate(
            asked, gpu, engine=engine, allocator=allocator, device=device, inference=inference
        )
        call = calls.ask_for(call, owner)
        return conversation.ask(ServedEstimate, call, wait, self._policy(wait))

    def _submit(self, asked: Asked, gpu: Gpu, engine: EngineName) -> Talk[str]:
        call = calls.ask_estimate(asked, gpu, engine=engine, allocator="")
        return conversation.submit(call, self._policy())

    def _fit(self, asked: Asked, engine: EngineName, allocator: str, wait: float) -> Talk[Fit]:
        call = calls.ask_fit(asked, engine=engine, allocator=allocator)
        return conversation.ask(Fit, call, wait, self._policy(wait))

    def _max_batch(
        self, job: Job, gpu: Gpu, engine: EngineName, wait: float, owner: Owner | None
    ) -> Talk[MaxBatch]:
        call = calls.ask_for(calls.ask_max_batch(job, gpu, engine=engine), owner)
        return conversation.ask(MaxBatch, call, wait, self._policy(wait))

    def _job(self, job_id: str, wait: float) -> Talk[JobRecord]:
        return conversation.read(JobRecord, calls.read_job(job_id, wait), self._policy())

    def _page(self, pages: calls.Pages) -> Talk[JobList]:
        return conversation.read(JobList, pages.call(), self._policy())

    def _cancel(self, job_id: str) -> Talk[JobRecord]:
        call = HttpCall(method="DELETE", path=calls.job_path(job_id))
        return conversation.read(JobRecord, call, self._policy())

    def _timeline(self, job_id: str) -> Talk[TimelineView]:
        return self._get(TimelineView, calls.job_path(job_id, "/timeline"))

    def _report(
        self, job_id: str, measured_peak_bytes: int, more: dict[str, Any]
    ) -> Talk[httpx2.Response]:
        fields = {"job": job_id, "measured_peak_bytes": measured_peak_bytes} | more
        outcome = validate(OutcomeCreate, fields, what="outcome")
        return conversation.send(calls.report(outcome), self._policy())


class Client(_Connection[httpx2.Client]):
    """Asks a server, and waits. A context manager; may be shared by threads.

    Every method may raise ``AnswerError`` (with ``code``, ``detail`` and ``status``; a
    ``RefusedError`` if the caller can fix it) and ``UnreachableError``.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        num_tries: int = DEFAULT_TRIES,
        transport: httpx2.BaseTransport | None = None,
    ) -> None:
        base, headers = find_server(url, api_key)
        http = httpx2.Client(base_url=base, headers=headers, transport=transport)
        super().__init__(http, num_tries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _run(self, talk: Talk[T]) -> T:
        try:
            step = next(talk)
            while True:
                if isinstance(step, Pause):
                    time.sleep(step.seconds)
                    step = talk.send(None)
                    continue
                try:
                    response = self._http.send(self._request(step))
                except httpx2.RequestError as error:
                    step = talk.throw(error)
                else:
                    step = talk.send(response)
        except StopIteration as over:
            answer: T = over.value
            return answer

    def estimate(
        self,
        asked: Asked,
        gpu: Gpu,
        *,
        engine: EngineName = "auto",
        allocator: str = "",
        device: int | None = None,
        inference: bool = False,
        wait: float = DEFAULT_WAIT_SECONDS,
        owner: Owner | None = None,
    ) -> ServedEstimate:
        """Ask whether a job fits on a GPU.

        Args:
            asked: a job (``JobSpec`` or dict), the path of a file (a job spec, a profiler trace, a
                memory snapshot or a timeline file, told apart by their content), or the bytes of
                a trace, a snapshot or a timeline file.
            gpu: a name from the catalogue, or a description of a GPU.
            engine: ``auto``, ``phantom`` or ``profile``; ignored for an upload.
            allocator: a ``PYTORCH_ALLOC_CONF`` string, for a trace, or instead of the own settings
                of a snapshot or a timeline file; a job has its own.
            device: which device of a snapshot or a trace of several GPUs; unless given, all are
                answered and the worst decides.
            inference: the job of a trace does not train; without a backward pass it may then be
                admitted.
            wait: how many seconds to wait for the answer.
            owner: for whom it is asked, by a program that asks for others.
        """
        return self._run(
            self._estimate(asked, gpu, engine, allocator, device, inference, wait, owner)
        )

    def submit(self, asked: Asked, gpu: Gpu, *, engine: EngineName = "auto") -> str:
        """Ask the same without waiting; return the job's id, for ``job``."""
        return self._run(self._submit(asked, gpu, engine))

    def fit(
        self,
        asked: Asked,
        *,
        engine: EngineName = "auto",
        allocator: str = "",
        wait: float = DEFAULT_WAIT_SECONDS,
    ) -> Fit:
        """Ask on which GPUs of the catalogue a job fits.

        Args:
            asked: a job (``JobSpec`` or dict), the path of a job spec or a timeline file, or the
                bytes of a timeline file.
            engine: ``auto``, ``phantom`` or ``profile``; ignored for a timeline file.
            allocator: a ``PYTORCH_ALLOC_CONF`` string, instead of a timeline file's own settings.
            wait: how many seconds to wait for the answer.
        """
        return self._run(self._fit(asked, engine, allocator, wait))

    def max_batch(
        self,
        job: Job,
        gpu: Gpu,
        *,
        engine: EngineName = "auto",
        wait: float = DEFAULT_WAIT_SECONDS,
        owner: Owner | None = None,
    ) -> MaxBatch:
        """Ask for the largest batch of a job that is admitted on a GPU."""
        return self._run(self._max_batch(job, gpu, engine, wait, owner))

    def job(self, job_id: str, *, wait: float = 0.0) -> JobRecord:
        """Return a job in its current state; waits up to half a minute for it to finish."""
        return self._run(self._job(job_id, wait))

    def jobs(
        self, *, state: JobState | None = None, kind: WorkKind | None = None
    ) -> Iterator[JobRecord]:
        """Yield all jobs, the newest first, page by page."""
        pages = calls.Pages(state=state, kind=kind)
        while pages.offset is not None:
            yield from pages.take(self._run(self._page(pages)))

    def cancel(self, job_id: str) -> JobRecord:
        """Withdraw a question; one that is answered stays as it is."""
        return self._run(self._cancel(job_id))

    def timeline(self, job_id: str) -> TimelineView:
        """Return the memory curve of an estimate."""
        return self._run(self._timeline(job_id))

    def gpus(self) -> list[GpuRead]:
        """Return the catalogue, the smallest memory first."""
        return self._run(self._get(list[GpuRead], "/gpus"))

    def report_outcome(self, job_id: str, measured_peak_bytes: int, **more: Any) -> None:
        """Report what an estimated job really took; ``more``: fields of ``OutcomeCreate``."""
        self._run(self._report(job_id, measured_peak_bytes, more))

    def record_decisions(self, entries: Sequence[AuditEntry]) -> None:
        """Record what a gate decided, in the server's audit."""
        self._run(conversation.send(calls.record_decisions(entries), self._policy()))

    def accuracy(self) -> AccuracyRead:
        """Return how accurate the server was, by the outcomes reported to it."""
        return self._run(self._get(AccuracyRead, "/accuracy"))


class AsyncClient(_Connection[httpx2.AsyncClient]):
    """The same without blocking, on asyncio or trio. An asynchronous context manager."""

    def __init__(
        self,
        url: str | None = None,
        *,
        api_key: str | None = None,
        num_tries: int = DEFAULT_TRIES,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        base, headers = find_server(url, api_key)
        http = httpx2.AsyncClient(base_url=base, headers=headers, transport=transport)
        super().__init__(http, num_tries)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _run(self, talk: Talk[T]) -> T:
        try:
            step = next(talk)
            while True:
                if isinstance(step, Pause):
                    await anyio.sleep(step.seconds)
                    step = talk.send(None)
                    continue
                try:
                    response = await self._http.send(self._request(step))
                except httpx2.RequestError as error:
                    step = talk.throw(error)
                else:
                    step = talk.send(response)
        except StopIteration as over:
            answer: T = over.value
            return answer

    async def estimate(
        self,
        asked: Asked,
        gpu: Gpu,
        *,
        engine: EngineName = "auto",
        allocator: str = "",
        device: int | None = None,
        inference: bool = False,
        wait: float = DEFAULT_WAIT_SECONDS,
        owner: Owner | None = None,
    ) -> ServedEstimate:
        """Ask whether a job fits on a GPU; takes the arguments of ``Client.estimate``."""
        return await self._run(
            self._estimate(asked, gpu, engine, allocator, device, inference, wait, owner)
        )

    async def submit(self, asked: Asked, gpu: Gpu, *, engine: EngineName = "auto") -> str:
        """Ask the same without waiting; return the job's id, for ``job``."""
        return await self._run(self._submit(asked, gpu, engine))

    async def fit(
        self,
        asked: Asked,
        *,
        engine: EngineName = "auto",
        allocator: str = "",
        wait: float = DEFAULT_WAIT_SECONDS,
    ) -> Fit:
        """Ask on which GPUs a job fits; takes the arguments of ``Client.fit``."""
        return await self._run(self._fit(asked, engine, allocator, wait))

    async def max_batch(
        self,
        job: Job,
        gpu: Gpu,
        *,
        engine: EngineName = "auto",
        wait: float = DEFAULT_WAIT_SECONDS,
        owner: Owner | None = None,
    ) -> MaxBatch:
        """Ask for the largest batch of a job that is admitted on a GPU."""
        return await self._run(self._max_batch(job, gpu, engine, wait, owner))

    async def job(self, job_id: str, *, wait: float = 0.0) -> JobRecord:
        """Return a job in its current state; waits up to half a minute for it to finish."""
        return await self._run(self._job(job_id, wait))

    async def jobs(
        self, *, state: JobState | None = None, kind: WorkKind | None = None
    ) -> AsyncIterator[JobRecord]:
        """Yield all jobs, the newest first, page by page."""
        pages = calls.Pages(state=state, kind=kind)
        while pages.offset is not None:
            for record in pages.take(await self._run(self._page(pages))):
                yield record

    async def cancel(self, job_id: str) -> JobRecord:
        """Withdraw a question; one that is answered stays as it is."""
        return await self._run(self._cancel(job_id))

    async def timeline(self, job_id: str) -> TimelineView:
        """Return the memory curve of an estimate."""
        return await self._run(self._timeline(job_id))

    async def gpus(self) -> list[GpuRead]:
        """Return the catalogue, the smallest memory first."""
        return await self._run(self._get(list[GpuRead], "/gpus"))

    async def report_outcome(self, job_id: str, measured_peak_bytes: int, **more: Any) -> None:
        """Report what an estimated job really took; ``more``: fields of ``OutcomeCreate``."""
        await self._run(self._report(job_id, measured_peak_bytes, more))

    async def accuracy(self) -> AccuracyRead:
        """Return how accurate the server was, by the outcomes reported to it."""
        return await self._run(self._get(AccuracyRead, "/accuracy"))
