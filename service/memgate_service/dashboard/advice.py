"""A job -> other questions whose answers say what would make it fit; and those answers, in words.

Nothing is guessed: each is a question like any other, answered by a worker. A run's id is a digest
of what it answers, so an answer that exists is found without asking again; its page is shown to
those who may see the question that was asked on this page.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from memgate.contract import Asker, JobRecord, JobState, Priority, Work, WorkKind
from memgate.decision import Decision
from memgate.jobspec import JobSpec, Precision
from memgate.max_batch import MaxBatch
from memgate.owner import Owner
from memgate.report import Estimate, Fit
from memgate_service.dashboard.links import may_link
from memgate_service.dashboard.rendering import write_seconds, write_size
from memgate_service.dashboard.viewers import Viewer
from memgate_service.http.dependencies import Dependencies
from memgate_worker.queue.client import JobOutcome, QueueClient

#: from this generation on, GPUs have bfloat16 in hardware
_FIRST_WITH_BF16 = 8

_EXPANDABLE = "expandable_segments:True"

#: optimizers that keep no state for a parameter unless told to
_STATELESS = {"SGD"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """Something to try."""

    name: str
    title: str
    work: Work


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalAdvice:
    """What is known about a proposal."""

    name: str
    title: str
    #: id of the question that was asked on this page, if its viewer may see that
    job: str
    #: None: nobody has asked
    state: JobState | None
    #: what was decided, or whose fault it is that nothing was; None: not yet
    outcome: JobOutcome | None
    text: str
    #: what it took to find that out
    how: str


def propose(record: JobRecord) -> list[Proposal]:
    """Return what is worth trying for a job."""
    work = record.work
    if record.kind is not WorkKind.ESTIMATE or work.gpu is None:
        return []
    if work.job is None:  # for an upload, only the device and its allocator can change
        other = work.model_copy(update={"allocator": _EXPANDABLE})
        known = [Proposal(name="allocator", title="Expandable segments", work=other)]
        return ([] if _EXPANDABLE in work.allocator else known) + _propose_recorded(record)
    return list(_propose(work, work.job))


def _propose_recorded(record: JobRecord) -> list[Proposal]:
    """Return what is worth trying for a timeline file alone: every GPU, by replay."""
    work, said = record.work, record.estimate
    if said is None or said.recording is None:
        return []
    everywhere = Work(kind=WorkKind.FIT, trace=work.trace, allocator=work.allocator)
    return [Proposal(name="gpu", title="Smallest GPU", work=everywhere)]


def _propose(work: Work, job: JobSpec) -> Iterator[Proposal]:
    yield Proposal(
        name="batch",
        title="Largest batch",
        work=work.model_copy(update={"kind": WorkKind.MAX_BATCH}),
    )
    changes: list[tuple[str, str, dict[str, Any]]] = []
    if job.precision in (Precision.FP32, Precision.TF32):
        has_bf16 = work.target.gpu.compute_capability[0] >= _FIRST_WITH_BF16
        amp = Precision.AMP_BF16 if has_bf16 else Precision.AMP_FP16
        changes.append(("precision", f"Mixed precision ({amp})", {"precision": amp}))
    if not job.gradient_checkpointing:
        title = "Gradient checkpointing"
        changes.append(("checkpointing", title, {"gradient_checkpointing": True}))
    if job.optimizer.name not in _STATELESS or job.optimizer.kwargs.get("momentum"):
        plain = job.optimizer.model_copy(update={"name": "SGD", "kwargs": {}})
        changes.append(("optimizer", "SGD without momentum", {"optimizer": plain}))
    if _EXPANDABLE not in job.allocator:
        setting = ",".join(filter(None, [job.allocator, _EXPANDABLE]))
        changes.append(("allocator", "Expandable segments", {"allocator": setting}))
    for name, title, change in changes:
        other = work.model_copy(update={"job": job.model_copy(update=change)})
        yield Proposal(name=name, title=title, work=other)
    everywhere = Work(kind=WorkKind.FIT, job=job, engine=work.engine)
    yield Proposal(name="gpu", title="Smallest GPU", work=everywhere)


def ask_all(queue: QueueClient, record: JobRecord, owner: Owner) -> None:
    """Ask the workers about every proposal, behind everybody else's questions."""
    known = _find_asked(queue, record)
    for proposal in propose(record):
        asked = known.get(proposal.name)
        if asked is None or asked.error is not None:
            asked = queue.ask(proposal.work, owner, Priority.LOW, Asker.DASHBOARD)
            queue.questions.note_proposal(record.id, proposal.name, asked.id)


def _find_asked(queue: QueueClient, record: JobRecord) -> dict[str, JobRecord]:
    """Return the questions that were asked on the page of a job, by the names of proposals."""
    ids = queue.questions.proposals(record.id)
    found = {one.id: one for one in queue.questions.read_many(list(ids.values()))}
    return {name: found[asked] for name, asked in ids.items() if asked in found}


def read_advice(deps: Dependencies, record: JobRecord, viewer: Viewer) -> list[ProposalAdvice]:
    """Return what is known about each proposal."""
    proposals = propose(record)
    found = deps.queue.read_many([proposal.work.id() for proposal in proposals])
    runs = {run.id: run for run in found}
    asked = {
        name: one.id
        for name, one in _find_asked(deps.queue, record).items()
        if may_link(deps, one, viewer)
    }
    return [
        _advice(proposal, runs.get(proposal.work.id()), record, asked.get(proposal.name, ""))
        for proposal in proposals
    ]


def find_fit(queue: QueueClient, record: JobRecord) -> Fit | None:
    """Return the answer for all GPUs, if somebody asked and there is one."""
    for proposal in propose(record):
        if proposal.work.kind is WorkKind.FIT:
            found = queue.find_run(proposal.work)
            said = found.result if found else None
            return said if isinstance(said, Fit) else None
    return None


def _advice(
    proposal: Proposal, other: JobRecord | None, record: JobRecord, asked: str
) -> ProposalAdvice:
    found = _Found(None, "not asked yet", "") if other is None else _sum_up(other, record)
    return ProposalAdvice(
        name=proposal.name,
        title=proposal.title,
        job=asked,
        state=other.state if other else None,
        outcome=found.outcome,
        text=found.text,
        how=found.how,
    )


class _Found(NamedTuple):
    outcome: JobOutcome | None
    text: str
    how: str


def _sum_up(other: JobRecord, record: JobRecord) -> _Found:
    if other.error is not None:
        return _Found(JobOutcome(other.error.fault.value), other.error.message, "")
    said = other.result
    if said is None:
        is_running = other.state is JobState.RUNNING
        return _Found(None, "running" if is_running else "waiting for a worker", "")
    if isinstance(said, MaxBatch):
        return _sum_up_batch(said)
    if isinstance(said, Fit):
        return _sum_up_fit(said)
    before = record.estimate or said
    saved = before.needs_bytes - said.needs_bytes
    change = f"{write_size(abs(saved))} {'less' if saved >= 0 else 'more'}"
    text = f"needs {write_size(said.needs_bytes)}, {change}"
    return _Found(JobOutcome(said.decision.value), text, describe_run(said))


def _sum_up_batch(said: MaxBatch) -> _Found:
    tried = f"{len(said.tried)} sizes tried"
    if said.batch_size is None or said.estimate is None:
        return _Found(JobOutcome.REJECT, "not even one sample fits", tried)
    needs = write_size(said.estimate.needs_bytes)
    return _Found(JobOutcome.ADMIT, f"{said.batch_size:,} samples, needs {needs}", tried)


def _sum_up_fit(said: Fit) -> _Found:
    fitting = sum(entry.decision is Decision.ADMIT for entry in said.gpus)
    how = f"fits on {fitting} of {len(said.gpus)}"
    if said.smallest is None:
        return _Found(JobOutcome.REJECT, "none of the catalogue is large enough", how)
    return _Found(JobOutcome.ADMIT, said.smallest, how)


def describe_run(said: Estimate) -> str:
    """Say whether an estimate needed a run of the job, or only a replay of an earlier one."""
    took = write_seconds(said.timings_ms.get("total", 0) / 1000)
    if said.recording is not None:
        return f"a replay of the timeline, {took}"
    if not said.runtime:
        return f"the trace, {took}"
    return f"a new run, {took}" if said.timings_ms.get("run") else f"a replay, {took}"
