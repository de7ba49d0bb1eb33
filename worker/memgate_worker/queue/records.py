"""Stored fields -> records. What cannot be read completely counts as absent, never as an error.

An older version may have written it, or another program that shares the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from math import isfinite
from typing import Any

import msgspec

from memgate.contract import JobRecord, JobState
from memgate_worker.queue.outcomes import MeasuredOutcome


def read_record(job_id: str, fields: dict[bytes, bytes]) -> JobRecord | None:
    """Read a job; None if there is none, or an older version's that we cannot read."""
    if not fields:
        return None
    try:
        texts: dict[str, Any] = {name.decode(): value.decode() for name, value in fields.items()}
        documents = {
            name: msgspec.json.decode(texts.pop(name))
            for name in ("work", "error")
            if name in texts
        }
        record = JobRecord.model_validate({"id": job_id} | texts | documents)
    except (ValueError, msgspec.DecodeError):
        return None
    lacks_its_end = (record.state is JobState.DONE and record.result is None) or (
        record.state is JobState.FAILED and record.error is None
    )
    return None if lacks_its_end else record


def read_state(state: bytes | None) -> JobState | None:
    """Read the state of a job."""
    try:
        return None if state is None else JobState(state.decode())
    except ValueError:
        return None


def read_outcome(packed: bytes) -> MeasuredOutcome | None:
    """Read what a finished job really took."""
    try:
        return MeasuredOutcome.model_validate_json(packed)
    except ValueError:
        return None


def read_numbers(fields: Mapping[bytes, bytes]) -> dict[str, float]:
    """Return what can be read as a number, by name."""
    numbers = {}
    for name, value in fields.items():
        with suppress(ValueError):
            numbers[name.decode()] = float(value)
    return {name: number for name, number in numbers.items() if isfinite(number)}
