"""Models of transformers without a head, for embeddings: what sentence-transformers loads.

A public name stands for a class with a head, which embeddings have no use for; its base is built.
"""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from memgate.errors import InputError, UnsupportedJobError
from memgate.jobspec import ModelSpec
from memgate.mistakes import Mistake, show_value, suggest, unknown_name
from memgate_worker.jobs.configs import find_config, make_config
from memgate_worker.jobs.seal import sealed


def build_encoder(spec: ModelSpec) -> nn.Module:
    """Build a model without a head.

    Raises:
        InputError: if there is no such class or public model, or it has a head, or its
            configuration has a key that would be ignored.
        UnsupportedJobError: if it writes text besides reading it.
    """
    class_name, settings = find_config(spec)
    model_class = _find_bare(class_name, has_name=spec.class_name is None)
    with sealed():
        config = make_config(model_class, settings)
        if config.is_encoder_decoder:
            raise UnsupportedJobError(
                f"loss: contrastive is known of models that read, and {model_class.__name__} also"
                " writes; ask about the command that trains it (memgate run --gpu GPU -- COMMAND)"
            )
        model: nn.Module = model_class._from_config(config)
    return model


def _find_bare(name: str, *, has_name: bool) -> Any:
    """Return a class without a head; that of another if it comes with a public name."""
    import transformers

    found = getattr(transformers, name, None) if name.isidentifier() else None
    is_model = inspect.isclass(found) and issubclass(found, transformers.PreTrainedModel)
    config_class = getattr(found, "config_class", None)
    if not is_model or config_class is None:
        known = [one for one in dir(transformers) if one.endswith("Model")]
        rule = "transformers has no such class"
        raise InputError.from_mistakes(unknown_name("model.class", name, known, rule=rule))
    bare = transformers.MODEL_MAPPING.get(config_class, None)
    if isinstance(bare, tuple):
        bare = bare[0]
    if bare is None or bare is found or has_name:
        return bare or found
    raise InputError.from_mistakes(
        Mistake(
            field="model.class",
            value=show_value(name),
            rule="it has a head, which a contrastive loss has no use for",
            next_step=suggest((bare.__name__,)),
            near=(bare.__name__,),
        )
    )
