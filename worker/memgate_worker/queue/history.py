"""Finished jobs -> what the dashboard shows: counts by the minute, and a log of decisions.

Both are bounded and outlive every program; a job costs a handful of increments and a line.
Questions that pages and refusals ask on their own, to find out what would make a job fit, are not
counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from math import ceil, exp2, log2

import msgspec

from memgate.contract import Asker, Failure, JobRecord, Result
from memgate.report import Estimate
from memgate.savings import memory_saved
from memgate.units import format_size
from memgate_worker.queue.store import JobStore

#: how many lines are read at once: few at first, then many
_CHUNKS = (100, 5_000)

#: the longest message in the log
_MAX_MESSAGE = 200
#: and of a command that a question is about
_MAX_SUBJECT = 80

#: steps per doubling of the scale on which durations are counted
_STEPS = 4


class JobOutcome(StrEnum):
    """The outcome of a job: what was decided, or whose fault it is that nothing was."""

    ADMIT = "admit"
    UNCERTAIN = "uncertain"
    REJECT = "reject"
    ANSWERED = "answered"
    """A question that is not about one GPU has an answer."""
    CALLER = "caller"
    JOB = "job"
    UNSUPPORTED = "unsupported"
    OPERATOR = "operator"
    PASSING = "passing"


class HistoryEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A finished job, in a line."""

    job: str
    """Id of the question; of the first one, where several were answered by a run."""
    at: float
    kind: str
    outcome: JobOutcome
    subject: str
    """The model, or that it was a trace."""
    message: str
    gpu: str = ""
    batch_size: int = 0
    engine: str = ""
    needs_bytes: int = 0
    available_bytes: int = 0
    """How much of the GPU the job had; 0 in what an older version wrote."""
    capacity_bytes: int = 0
    seconds: float = 0.0
    """From asking to the answer."""
    is_advice: bool = False
    """A page or a refusal asked, to find out what would make another job fit."""


_decoder = msgspec.json.Decoder(HistoryEntry)


def note_answer(store: JobStore, record: JobRecord, result: Result) -> None:
    """Remember that a job was answered."""
    said = result if isinstance(result, Estimate) else None
    _note(store, record, _describe_answer(record, result, datetime.now(UTC)), said)


def note_failure(store: JobStore, record: JobRecord, error: Failure) -> None:
    """Remember that a job has no answer, and count it by whose fault it is."""
    store.count("jobs", f"{record.kind}:{error.fault}")
    store.count("failures", error.code)
    _note(store, record, _describe_failure(record, error, datetime.now(UTC)))


def describe_question(record: JobRecord) -> HistoryEntry | None:
    """Return the line of a question; None if it has not ended."""
    ended_at = record.finished_at or record.created_at
    if record.result is not None:
        return _describe_answer(record, record.result, ended_at)
    return None if record.error is None else _describe_failure(record, record.error, ended_at)


def _describe_answer(record: JobRecord, result: Result, now: datetime) -> HistoryEntry:
    if not isinstance(result, Estimate):
        return _make_entry(record, JobOutcome.ANSWERED, result.headline, now)
    said = result.explanation
    message = "; ".join([said.headline, *said.why])
    return _make_entry(record, JobOutcome(result.decision.value), message, now, result)


def _describe_failure(record: JobRecord, error: Failure, now: datetime) -> HistoryEntry:
    outcome = JobOutcome(error.fault.value)
    return _make_entry(record, outcome, f"{error.code}: {error.message}", now)


def read_history(store: JobStore) -> Iterator[HistoryEntry]:
    """Yield finished jobs, the newest first; a line of another version is left out."""
    first, size = 0, _CHUNKS[0]
    while packed := store.decisions(first, size):
        for line in packed:
            with suppress(msgspec.DecodeError):
                yield _decoder.decode(line)
        if len(packed) < size:
            return
        first, size = first + size, _CHUNKS[1]


def _make_entry(
    record: JobRecord,
    outcome: JobOutcome,
    message: str,
    now: datetime,
    said: Estimate | None = None,
) -> HistoryEntry:
    work = record.work
    gpu = "" if work.gpu is None else work.gpu.name or format_size(work.gpu.memory_bytes or 0)
    is_short = len(message) <= _MAX_MESSAGE
    return HistoryEntry(
        job=record.question or record.id,
        at=now.timestamp(),
        kind=record.kind,
        outcome=outcome,
        subject=describe_subject(record, said),
        message=message if is_short else f"{message[: _MAX_MESSAGE - 3]}...",
        gpu=gpu,
        batch_size=work.job.batch_size if work.job else 0,
        engine=said.engine if said else "",
        needs_bytes=said.needs_bytes if said else 0,
        available_bytes=said.available_bytes if said else 0,
        capacity_bytes=said.capacity_bytes if said else 0,
        seconds=round((now - record.created_at).total_seconds(), 3),
        is_advice=record.asked_by is not Asker.CALLER,
    )


def describe_subject(record: JobRecord, said: Estimate | None = None) -> str:
    """Say in a word or two what a question is about; ``said`` is the answer, if not in the record.

    What an upload is, only the answer knows.
    """
    job = record.work.job
    if job is None:
        said = said or record.estimate
        if said is not None and said.recording is not None:
            command = said.recording.command or f"timeline {(record.work.trace or '')[:8]}"
            is_short = len(command) <= _MAX_SUBJECT
            return command if is_short else f"{command[: _MAX_SUBJECT - 3]}..."
        return f"trace {(record.work.trace or '')[:8]}"
    return job.model.title


def _note(
    store: JobStore, record: JobRecord, entry: HistoryEntry, said: Estimate | None = None
) -> None:
    counts = count_entry(entry)
    if said is not None and record.work.job is not None:
        counts[f"runs:{'made' if said.timings_ms.get('run') else 'known'}"] = 1
    store.note(counts, msgspec.json.encode(entry))


def count_entry(entry: HistoryEntry) -> dict[str, int]:
    """Return what a finished job adds to the counts of its minute."""
    if entry.is_advice:
        return {}
    counts = {f"outcome:{entry.outcome}": 1}
    if entry.capacity_bytes:
        counts["saved_bytes"] = memory_saved(
            entry.outcome,
            capacity_bytes=entry.capacity_bytes,
            upper_bound_bytes=entry.needs_bytes,
        )
        counts[f"time:{entry.engine}:{time_step(entry.seconds)}"] = 1
    return counts


def time_step(seconds: float) -> int:
    """Return a duration's step on the scale, on which each step is a fifth above the last."""
    return max(0, ceil(_STEPS * log2(max(seconds, 0.001) / 0.001)))


def step_seconds(step: int) -> float:
    """Return the longest duration of a step."""
    return 0.001 * exp2(step / _STEPS)
