"""Models of diffusers: by class and configuration, or by a public name. Never a download.

A class takes what its constructor declares. diffusers itself ignores other keys, so they are
refused here; in a published ``config.json``, which may be older or newer, those that look misspelt.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

from torch import nn

from memgate.errors import InputError
from memgate.jobspec import ModelSource, ModelSpec
from memgate.mistakes import Mistake, unknown_field, unknown_name
from memgate.near_names import find_near
from memgate_worker.jobs.libraries import need_library
from memgate_worker.jobs.public import find_public_model
from memgate_worker.jobs.seal import sealed
from memgate_worker.jobs.steering import steer

#: how classes of models are named
_MODELS = re.compile(
    r"(?!Flax|Multi|Auto(Model|encoderMixin)|ModelMixin)\w*(Model|UNet|VAE|KL\w*)$"
)

#: how similar, up to 1, an unknown key must be to a known one that was meant
_MISSPELT = 0.9

#: what steers a U-Net
_CONTROLNET = "ControlNetModel"

#: what a published configuration has
_PUBLISHED = "_class_name"


def build_diffusers(spec: ModelSpec) -> nn.Module:
    """Build a model of diffusers.

    Raises:
        InputError: if there is no such class or public model, or its configuration has a key that
            would be ignored.
        LibraryMissingError: if the runtime lacks diffusers.
    """
    class_name, settings = find_settings(spec)
    model_class = find_model_class(class_name)
    if mistakes := list(_find_unknown(model_class, settings)):
        raise InputError.from_mistakes(*mistakes)
    with sealed():
        model: nn.Module = model_class(**{k: v for k, v in settings.items() if k[0] != "_"})
        if class_name == _CONTROLNET:
            return steer(model, find_model_class("UNet2DConditionModel"))
    return model


def find_settings(spec: ModelSpec) -> tuple[str, dict[str, Any]]:
    """Return the class of a model of diffusers and the arguments of its constructor.

    Raises:
        InputError: if the model is named and our table has no such name.
    """
    if spec.name is not None:
        public = find_public_model(spec.name, ModelSource.DIFFUSERS)
        return public.class_name, public.config | spec.config
    assert spec.architecture is not None, "a spec has one or the other"
    return spec.architecture, {k: v for k, v in spec.config.items() if k != "architectures"}


def find_model_class(name: str) -> Any:
    """Return a class of diffusers that is a model.

    Raises:
        InputError: if there is none of this name, with similar names.
        LibraryMissingError: if the runtime lacks diffusers.
    """
    diffusers = _import_diffusers()
    found = getattr(diffusers, name, None) if name.isidentifier() else None
    if inspect.isclass(found) and issubclass(found, diffusers.ModelMixin) and name != "ModelMixin":
        return found
    known = [one for one in dir(diffusers) if _MODELS.fullmatch(one)]
    rule = "diffusers has no such class" if found is None else "it is not a model"
    raise InputError.from_mistakes(unknown_name("model.class", name, known, rule=rule))


def _import_diffusers() -> Any:
    """Import the library, but not what it loads adapters and quantised weights with.

    It never does that here, those libraries use CUDA while they are imported, and a host that has
    used CUDA cannot be forked. A job with an adapter imports peft itself.
    """
    available = need_library("diffusers.utils.import_utils", "model.source: diffusers")
    for flag in ("_bitsandbytes_available", "_peft_available", "_torchao_available"):
        setattr(available, flag, False)
    return need_library("diffusers", "model.source: diffusers")


def _find_unknown(model_class: Any, settings: Mapping[str, Any]) -> Iterator[Mistake]:
    known = [one for one in inspect.signature(model_class.__init__).parameters if one != "self"]
    for name, value in settings.items():
        if name in known or name.startswith("_"):
            continue
        rule = "the configuration has no such key"
        mistake = unknown_field(f"model.config.{name}", value, known, rule=rule)
        is_meant = mistake.near and name in find_near(mistake.near[0], [name], likeness=_MISSPELT)
        if _PUBLISHED not in settings or is_meant:
            yield mistake
