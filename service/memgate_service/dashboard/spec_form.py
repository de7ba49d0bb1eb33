"""The form of *Try it*: what people set most, read from the text of a spec, and set in it.

The text is the only place where a job is kept: the form shows what is in it, and changes it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memgate.errors import InputError
from memgate.first_spec import read_batch, read_input, read_model, read_precision
from memgate.jobspec import ModelSource, QuantizationMethod, Strategy
from memgate.mistakes import Mistake, show_value
from memgate.spec_edit import set_field
from memgate.spec_text import SpecTextError, read_text
from memgate.units import format_count
from memgate_worker.jobs.public import find_public_model, list_public_models
from memgate_worker.runtimes.model_names import list_constructors

#: a rank is a whole number like a batch; nothing takes the adapter away
_NONE = ""

#: the names of the form's fields -> the field of the spec that each is in
FIELDS = {
    "model": "model",
    "input": "input",
    "batch_size": "batch_size",
    "optimizer": "optimizer",
    "precision": "precision",
    "rank": "lora",
    "quantization": "quantization",
    "strategy": "distributed",
    "world_size": "distributed",
}

#: of a form that has only one of the two
_USUAL_GPUS = 8


def list_models() -> list[dict[str, str]]:
    """Return what the search for a model offers: as it is written, and what it is."""
    public = [
        {
            "value": model.name,
            "about": " ".join(filter(None, (format_count(model.num_parameters), model.class_name))),
        }
        for model in list_public_models()
    ]
    made = [{"value": f"{source}:{name}", "about": ""} for source, name in list_constructors()]
    return made + public


def read_form(text: str) -> dict[str, str]:
    """Return the form's fields as the text of a spec has them; "" for what it does not say.

    Raises:
        SpecTextError: if it cannot be read.
    """
    job = _job_of(read_text(text) if text.strip() else {})
    lora = job.get("lora")
    quantization = job.get("quantization")
    divided = job.get("distributed")
    divided = divided if isinstance(divided, dict) else {}
    return {
        "model": _show_model(job.get("model")),
        "input": _show_input(job.get("input")),
        "batch_size": _show(job.get("batch_size")),
        "optimizer": _show(_inside(job.get("optimizer"), "name")),
        "precision": _show(job.get("precision")),
        "rank": _show(lora.get("rank", 8)) if isinstance(lora, dict) else _NONE,
        "quantization": _show(_inside(quantization, "method")),
        "strategy": _show(divided.get("strategy")),
        "world_size": _show(divided.get("world_size")),
    }


def fill_form(text: str, name: str, value: str) -> str:
    """Set one of the form's fields in the text of a spec; "" takes it out.

    Raises:
        InputError: if the value is wrong, or the text cannot be read.
    """
    document = read_text(text) if text.strip() else {}
    job = _job_of(document)
    made = _READERS[name](value.strip(), job) if value.strip() else None
    field = FIELDS[name]
    if isinstance(document, dict) and "job" in document:
        inner = {key: one for key, one in job.items() if key != field}
        return set_field(text, "job", inner if made is None else job | {field: made})
    return set_field(text, field, made)


def _job_of(document: object) -> dict[str, Any]:
    """Return the job of a document that is one, or that is a whole question."""
    if not isinstance(document, dict):
        raise SpecTextError("a job spec is an object with named fields")
    job = document.get("job", document)
    if not isinstance(job, dict):
        raise SpecTextError("'job' is an object with named fields")
    return job


def _inside(part: object, name: str) -> object:
    return part.get(name) if isinstance(part, dict) else part


def _show(value: object) -> str:
    return _NONE if value is None else str(value)


def _show_model(model: object) -> str:
    name = _inside(model, "name")
    if not isinstance(model, dict) or not isinstance(name, str):
        return _NONE
    source = model.get("source")
    is_made = source in (ModelSource.TORCHVISION, ModelSource.TIMM)
    return f"{source}:{name}" if is_made else name


def _show_input(given: object) -> str:
    if not isinstance(given, dict):
        return _NONE
    shape = given.get("shape")
    if isinstance(shape, list):
        return "x".join(map(str, shape))
    return _show(given.get("sequence_length"))


def _read_input(text: str, job: dict[str, Any]) -> dict[str, Any]:
    source = _inside(job.get("model"), "source")
    return read_input(text, str(source or ModelSource.TORCHVISION))


def _read_optimizer(text: str, job: dict[str, Any]) -> dict[str, Any]:
    """Keep the arguments: the name alone is in the form."""
    given = job.get("optimizer")
    return (given if isinstance(given, dict) else {}) | {"name": text}


def _read_rank(text: str, job: dict[str, Any]) -> dict[str, Any]:
    given = job.get("lora")
    return (given if isinstance(given, dict) else {}) | {"rank": read_batch(text)}


def _read_quantization(text: str, job: dict[str, Any]) -> str:
    if text not in set(QuantizationMethod):
        mistake = Mistake(
            field="quantization", value=show_value(text), rule="there is no such quantisation"
        )
        raise InputError.from_mistakes(mistake)
    return text


def _read_strategy(text: str, job: dict[str, Any]) -> dict[str, Any]:
    """Keep how many GPUs there are; what goes with another strategy only is left to its author."""
    if text not in set(Strategy):
        mistake = Mistake(
            field="distributed.strategy", value=show_value(text), rule="there is no such strategy"
        )
        raise InputError.from_mistakes(mistake)
    return {"world_size": _USUAL_GPUS} | _divided(job) | {"strategy": text}


def _read_world_size(text: str, job: dict[str, Any]) -> dict[str, Any]:
    return {"strategy": Strategy.DDP.value} | _divided(job) | {"world_size": read_batch(text)}


def _divided(job: dict[str, Any]) -> dict[str, Any]:
    given = job.get("distributed")
    return given if isinstance(given, dict) else {}


_READERS: dict[str, Callable[[str, dict[str, Any]], Any]] = {
    "model": lambda text, _: read_model(text, lambda name: find_public_model(name).name),
    "input": _read_input,
    "batch_size": lambda text, _: read_batch(text),
    "optimizer": _read_optimizer,
    "precision": lambda text, _: read_precision(text),
    "rank": _read_rank,
    "quantization": _read_quantization,
    "strategy": _read_strategy,
    "world_size": _read_world_size,
}
