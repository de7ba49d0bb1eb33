"""The name of a public model -> its class and configuration, from our own table. Never a download.

The table is a folder of families, ``public_models/FAMILY.json``. A family has the ``source``
(transformers unless it says so), the class by which
its models are usually trained, the ``sources`` of its values, what their configurations have in
common, and its ``models``: each with the rest of its configuration, the number of ``parameters``
that was published, and ``also``, other names of models that are built in the same way. Values that
change no size (token ids, rotary angles, epsilons) are left out.

The folder is read when a name is first looked up. No torch, no transformers: the command line lists
the names too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from memgate.errors import InputError
from memgate.jobspec import ModelSource
from memgate.mistakes import Mistake, show_value, suggest
from memgate.near_names import find_near, loosen

#: how many similar names are suggested
_MAX_NEAR = 3

_FAMILIES = Path(__file__).with_name("public_models")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicModel:
    """A model that can be named."""

    name: str
    source: ModelSource
    family: str
    class_name: str
    config: dict[str, Any]
    #: as published, exact or rounded; None if we know of no number for this class
    num_parameters: int | None
    #: files of public repositories that the values were read from
    sources: tuple[str, ...]
    #: the model whose entry it shares: its own name, or that of another
    entry: str


@cache
def list_public_models() -> tuple[PublicModel, ...]:
    """Return every model of the table, by family and size."""
    return tuple(
        model
        for path in sorted(_FAMILIES.glob("*.json"))
        for model in _read_family(path.stem, json.loads(path.read_text()))
    )


def _read_family(family: str, content: dict[str, Any]) -> Iterator[PublicModel]:
    for entry, own in content["models"].items():
        for name in (entry, *own.get("also", ())):
            yield PublicModel(
                name=name,
                source=ModelSource(content.get("source", ModelSource.TRANSFORMERS)),
                family=family,
                class_name=own.get("class", content["class"]),
                config=content["config"] | own["config"],
                num_parameters=own.get("parameters"),
                sources=tuple(content["sources"]),
                entry=entry,
            )


@cache
def _spellings() -> dict[str, dict[str, PublicModel]]:
    """Every name in lower case, with and without its owner -> the models that bear it, by entry."""
    found: dict[str, dict[str, PublicModel]] = {}
    for model in list_public_models():
        for spelling in (model.name, _without_owner(model.name)):
            found.setdefault(spelling.lower(), {}).setdefault(model.entry, model)
    return found


def _without_owner(name: str) -> str:
    return name.rpartition("/")[2]


def find_public_model(name: str, source: ModelSource = ModelSource.TRANSFORMERS) -> PublicModel:
    """Find a model by its name, whatever its case; without its owner where one model is meant.

    Raises:
        InputError: if the table has no such name of this library, or several models bear it; with
            similar names.
    """
    found = list(_spellings().get(name.lower(), {}).values())
    if len(found) == 1 and found[0].source is source:
        return found[0]
    if len(found) == 1:
        raise InputError.from_mistakes(
            Mistake(
                field="model.source",
                value=show_value(str(source)),
                rule=f"{found[0].name} is a model of {found[0].source}",
                next_step=f"write 'source': '{found[0].source}'",
            )
        )
    if found:
        rule, near = "several public models bear this name", tuple(one.name for one in found)
    else:
        rule, near = "it is not in the table of public models", find_near_models(name)
    step = "give 'class' and 'config' (its config.json, as it is published)"
    classes = () if near else find_near(name, {model.class_name for model in list_public_models()})
    if classes:
        step = f"it looks like a class: write 'class': '{classes[0]}', with its 'config'"
    raise InputError.from_mistakes(
        Mistake(
            field="model.name",
            value=show_value(name),
            rule=rule,
            next_step=" otherwise ".join(filter(None, (suggest(near), step))),
            near=near,
        )
    )


def find_near_models(name: str) -> tuple[str, ...]:
    """Return the full names of the models whose names are most like one that is unknown.

    People leave out what comes last, a variant or a size, so names that begin in the same way go
    before those that are merely similar.
    """
    full = {
        spelling: model
        for model in reversed(list_public_models())  # of equal spellings the first counts
        for spelling in (_without_owner(model.name), model.name)
    }
    wanted = loosen(_without_owner(name))
    begin = [one for one in full if wanted and loosen(one).startswith(wanted)]
    begin.sort(key=lambda one: (full[one].name != full[one].entry, len(one)))
    near = [full[one].name for one in (*begin[:_MAX_NEAR], *find_near(name, full))]
    return tuple(dict.fromkeys(near))[:_MAX_NEAR]
