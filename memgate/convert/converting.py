"""A trainer's config -> a job spec, and what became of each of its fields.

Pure: the files that a config names are read by others, models are never looked up, nothing is run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from memgate.convert import axolotl, axolotl_fields, deepspeed, hf, llama_factory, torchtune
from memgate.convert.conversion import Beside, ConfigKind, Conversion
from memgate.convert.draft import Draft
from memgate.convert.fields import Config, FieldUse, Knowledge
from memgate.convert.kinds import find_kind
from memgate.errors import InputError
from memgate.jobspec import parse_job_spec

_TOOLS: dict[ConfigKind, tuple[Callable[[Draft], None], Knowledge]] = {
    ConfigKind.HF: (hf.convert_hf, hf.KNOWN),
    ConfigKind.TRL: (hf.convert_trl, hf.KNOWN),
    ConfigKind.AXOLOTL: (axolotl.convert_axolotl, axolotl_fields.KNOWN),
    ConfigKind.LLAMA_FACTORY: (llama_factory.convert_llama_factory, llama_factory.KNOWN),
    ConfigKind.TORCHTUNE: (torchtune.convert_torchtune, torchtune.KNOWN),
}

#: where transformers' Trainer, and what is built on it, says which DeepSpeed file it takes
_DEEPSPEED = "deepspeed"

#: what comes first in a spec that people read
_ORDER = ("model", "input", "batch_size", "trainer", "precision", "optimizer")


def convert(document: object, *, kind: ConfigKind | None = None, beside: Beside) -> Conversion:
    """Convert a config that was read from JSON or YAML.

    Raises:
        InputError: if it is not a config, or one of its values is wrong.
        UnsupportedJobError: if a job spec cannot describe what it does.
    """
    if not isinstance(document, dict) or not document:
        raise InputError("a config is an object with named fields")
    found = kind or find_kind(document)
    make, known = _TOOLS[found]
    is_torchtune = found is ConfigKind.TORCHTUNE
    draft = (
        torchtune.read_torchtune(document, beside)
        if is_torchtune
        else Draft(Config(document), beside)
    )
    make(draft)
    fields = _add_deepspeed(draft)
    spec = {name: draft.spec[name] for name in _ORDER if name in draft.spec} | draft.spec
    parse_job_spec(spec)
    return Conversion(
        kind=found,
        spec=spec,
        fields=draft.config.account(known) + fields,
        assumptions=tuple(draft.assumptions),
    )


def find_deepspeed(document: object) -> str | None:
    """Return the path of the DeepSpeed file that a config names, if it names one."""
    named = document.get(_DEEPSPEED) if isinstance(document, dict) else None
    return named if isinstance(named, str) and named else None


def _add_deepspeed(draft: Draft) -> tuple[FieldUse, ...]:
    config = draft.config
    named = config.get(_DEEPSPEED)
    inside: dict[str, Any] = config.below(_DEEPSPEED)
    given = draft.beside.deepspeed if draft.beside.deepspeed is not None else _nest(inside)
    if not given:
        if named:
            config.refuse(_DEEPSPEED, "its file is not there; add --deepspeed FILE")
        return ()
    read = deepspeed.read_deepspeed(given)
    deepspeed.put_deepspeed(draft, read)
    return read.account(deepspeed.KNOWN)


def _nest(flat: dict[str, Any]) -> dict[str, Any]:
    """Return fields by full names as the object that they were."""
    whole: dict[str, Any] = {}
    for name, value in flat.items():
        *above, last = name.split(".")
        part = whole
        for one in above:
            part = part.setdefault(one, {})
        part[last] = value
    return whole
