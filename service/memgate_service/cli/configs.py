"""A trainer's config in a file -> a job spec, with the DeepSpeed file that it names."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from memgate.convert import Assumption, Beside, ConfigKind, Conversion, convert, find_deepspeed
from memgate.errors import InputError
from memgate.file_kinds import HEAD_BYTES
from memgate.given_files import naming, open_given_file
from memgate.mistakes import suggest
from memgate.spec_text import read_bytes
from memgate_worker.jobs.public import find_near_models, find_public_model

_STDIN = Path("-")


def read_config(path: Path) -> object:
    """Read JSON or YAML from a file or (``-``) from standard input.

    Raises:
        InputError: if it is neither, is not a file, or is longer than any config.
    """
    if path == _STDIN:
        with naming(path):
            return read_bytes(sys.stdin.buffer.read(HEAD_BYTES), what="a config")
    with open_given_file(path) as stream:
        return read_bytes(stream.read(HEAD_BYTES), what="a config")


def convert_file(
    path: Path, *, kind: ConfigKind | None, beside: Beside, deepspeed: Path | None = None
) -> Conversion:
    """Convert a config; a model that has no public name is said.

    Raises:
        InputError: if a file or one of its values is wrong.
        UnsupportedJobError: if a job spec cannot describe what it does.
    """
    document = read_config(path)
    found = deepspeed or _find_beside(path, find_deepspeed(document))
    given = _read_deepspeed(found) if found is not None else None
    with naming(path):
        conversion = convert(document, kind=kind, beside=replace(beside, deepspeed=given))
    return _with_model(conversion)


def _find_beside(path: Path, named: str | None) -> Path | None:
    """Return the DeepSpeed file that a config names, as seen from here or from its folder."""
    places = [] if named is None else [Path(named), path.parent / named]
    return next((place for place in places if place.is_file()), None)


def _read_deepspeed(path: Path) -> dict[str, object]:
    document = read_config(path)
    if not isinstance(document, dict):
        raise InputError(f"{path}: a DeepSpeed file is an object with named fields")
    return document


def _with_model(conversion: Conversion) -> Conversion:
    name = conversion.spec["model"]["name"]
    try:
        find_public_model(name)
    except InputError:
        step = "write the model's config.json, as it is published, into the spec: model:"
        near = suggest(find_near_models(name))
        why = f"{name} is not in the table of public models; "
        why += " otherwise ".join(filter(None, (near, step)))
        why += " {source: transformers, config: {...}}"
        missing = Assumption(field="model", why=why, can_matter=True)
        return replace(conversion, assumptions=(missing, *conversion.assumptions))
    return conversion
