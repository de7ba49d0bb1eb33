"""What is wrong with what somebody typed, and what to do about a job that has no answer."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pydantic import BaseModel

from memgate.errors import Fault, UnknownGpuError, UnsupportedGpuError
from memgate.gpus import find_gpu
from memgate.mistakes import Mistake
from memgate.validation import explain_errors

#: what a job without an answer is called, and what to do about it, by whose fault it is
_FAULTS = {
    Fault.CALLER: (
        "Invalid question",
        "Change what the message names, then ask again; without a change, the answer is the same.",
    ),
    Fault.JOB: (
        "The job itself fails",
        "It would fail like this on a GPU, too. Change the job, then ask again.",
    ),
    Fault.UNSUPPORTED: (
        "Not supported by memgate yet",
        "This is a limit of memgate, and says nothing about the job. If there is a way around"
        " it, the message names it.",
    ),
    Fault.OPERATOR: (
        "The operator must install or configure something",
        "Nothing is wrong with the job. The message says what the operator has to do; then ask"
        " again.",
    ),
    Fault.PASSING: (
        "Ask again",
        "Nothing is wrong with the job. If it happens again, the workers' logs say why.",
    ),
}


def whose_mistake(fault: Fault) -> str:
    """Name a job without an answer by whose fault it is."""
    return _FAULTS[fault][0]


def next_step(fault: Fault) -> str:
    """Say what to do about a job without an answer."""
    return _FAULTS[fault][1]


def explain(errors: Iterable[Any], model: type[BaseModel], *, inside: str = "") -> list[Mistake]:
    """Turn what pydantic found into mistakes; ``inside`` leaves off the first name of a field."""
    found = explain_errors(errors, model)
    return [replace(one, field=one.field.removeprefix(f"{inside}.")) for one in found]


def find_wrong_gpu(name: str) -> list[Mistake]:
    """Return what is wrong with the name of a GPU; nothing if it is known."""
    try:
        find_gpu(name)
    except (UnknownGpuError, UnsupportedGpuError) as error:
        return list(error.mistakes)
    return []
