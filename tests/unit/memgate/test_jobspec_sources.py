"""Job specs of diffusers and of embeddings: what must be given, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from memgate.errors import InputError
from memgate.jobspec import JobSpec, Loss, ModelSource, parse_job_spec


def _spec(model: dict[str, Any], **others: Any) -> JobSpec:
    given = {"input": {"sequence_length": 8}, "batch_size": 1, **others}
    return parse_job_spec({"model": model, **given})


def test_a_model_of_diffusers_has_a_class_or_a_name() -> None:
    """Also one that a whole config.json names."""
    config = {"_class_name": "DiTTransformer2DModel"}

    by_class = _spec({"source": "diffusers", "class": "DiTTransformer2DModel"}, input={})
    whole = _spec({"source": "diffusers", "config": config})
    named = _spec({"source": "diffusers", "name": "FLUX.1-dev"})

    assert by_class.model.source is ModelSource.DIFFUSERS
    assert whole.model.architecture == by_class.model.architecture == "DiTTransformer2DModel"
    assert named.model.title == "FLUX.1-dev"


@pytest.mark.parametrize(
    ("model", "want"),
    [
        ({}, "diffusers takes 'class' and 'config', or a public 'name'; add 'class' or 'name'"),
        ({"class": "A", "name": "B"}, "leave out 'class' or 'name'"),
        ({"class": "A", "kwargs": {"b": 1}}, "write what is in 'kwargs' in 'config'"),
    ],
)
def test_a_model_of_diffusers_is_refused_like_one_of_transformers(
    model: dict[str, Any], want: str
) -> None:
    """By the same rule, with the library's name."""
    with pytest.raises(InputError) as raised:
        _spec({"source": "diffusers", **model})

    assert want in raised.value.message


def test_a_contrastive_loss_is_of_texts() -> None:
    """Other models have no vectors of texts."""
    assert _spec({"source": "transformers", "class": "BertModel"}, loss="contrastive").loss is (
        Loss.CONTRASTIVE
    )
    with pytest.raises(InputError, match="loss is 'contrastive': contrastive compares texts"):
        _spec({"source": "diffusers", "class": "A"}, loss="contrastive")
