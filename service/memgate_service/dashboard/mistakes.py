"""What is wrong with a job spec -> what a person wants to read: field, value, rule, next step."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Any, NamedTuple

from memgate.errors import Fault
from memgate.gpus import CATALOGUE
from memgate.jobspec import InputSpec, JobSpec, ModelSpec, OptimizerSpec
from memgate.units import clip

_MAX_MISTAKES = 20

#: fields of each part of a spec, as people write them
_FIELDS = {
    "": tuple(JobSpec.model_fields),
    "model": ("source", "name", "class", "config", "kwargs"),
    "input": tuple(InputSpec.model_fields),
    "optimizer": tuple(OptimizerSpec.model_fields),
}
assert set(_FIELDS["model"]) == {*ModelSpec.model_fields, "class"} - {"class_name"}

_EXAMPLES = {
    "model": '"model": {"source": "torchvision", "name": "resnet50"}',
    "input": '"input": {"shape": [3, 224, 224]}, or {"sequence_length": 512} for a language model',
    "batch_size": '"batch_size": 32',
    "model.source": '"source": "torchvision", "timm" or "transformers"',
}

#: what a job without an answer is called, and what to do about it, by whose fault that is
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
        "This is a limit of memgate's, and says nothing about the job. Where there is a way around"
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


class Mistake(NamedTuple):
    """Something that is wrong."""

    field: str
    value: str
    rule: str
    next_step: str


def whose_mistake(fault: Fault) -> str:
    """Name a job without an answer by whose fault that is."""
    return _FAULTS[fault][0]


def next_step(fault: Fault) -> str:
    """Say what to do about a job without an answer."""
    return _FAULTS[fault][1]


def explain(errors: Iterable[Any], *, inside: str = "") -> list[Mistake]:
    """Turn what pydantic found into what a person reads; ``inside`` leaves off the first names."""
    mistakes = []
    for error in list(errors)[:_MAX_MISTAKES]:
        names = [str(part) for part in error["loc"]]
        if inside and names[:1] == [inside]:
            names = names[1:]
        mistakes.append(_explain(".".join(names), error))
    return mistakes


def _explain(field: str, error: Any) -> Mistake:
    rule = error["msg"].removeprefix("Value error, ")
    value = clip(error.get("input"), limit=100)
    parent, _, name = field.rpartition(".")
    if error["type"] == "missing":
        example = _EXAMPLES.get(field)
        step = f"Add it: {example}." if example else f"Add {name!r}."
        return Mistake(field, "missing", "it has to be there", step)
    if error["type"] == "extra_forbidden":
        known = _FIELDS.get(parent, ())
        near = get_close_matches(name, known, 1)
        step = f"Did you mean {near[0]!r}?" if near else "Leave it out."
        if known and not near:
            step = f"Leave it out; there are: {', '.join(known)}."
        return Mistake(field, value, "there is no such field", step)
    return Mistake(field or "the whole", value, rule, _advise(field, error))


def _advise(field: str, error: Any) -> str:
    kind = error["type"]
    if kind in ("enum", "literal_error"):
        near = get_close_matches(str(error.get("input")), _choices(error), 1)
        return f"Did you mean {near[0]!r}?" if near else "Write one of those."
    if kind.startswith(("int_", "float_", "greater_", "less_")):
        return "Write a number within the rule, without quotes."
    if field.endswith("allocator"):
        return "Write it as PYTORCH_ALLOC_CONF is written: expandable_segments:True"
    if field in _EXAMPLES:
        return f"Write it like {_EXAMPLES[field]}."
    return "Change it to follow the rule."


def _choices(error: Any) -> list[str]:
    expected = str(error.get("ctx", {}).get("expected", ""))
    return [word.strip(" '") for word in expected.replace(" or ", ",").split(",")]


def wrong_gpu(name: str) -> Mistake:
    """Say that there is no such GPU."""
    near = get_close_matches(name, CATALOGUE, 1)
    step = f"Did you mean {near[0]!r}?" if near else f"There are: {', '.join(CATALOGUE)}."
    return Mistake("gpu", clip(name), "it is not in the catalogue", step)
