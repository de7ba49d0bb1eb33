"""Models of diffusers and embeddings of texts: fed and trained as their libraries do it.

All classes of diffusers that are trained are asked about by ``make breadth-tasks``.
"""

from __future__ import annotations

from typing import Any

import pytest

from memgate.errors import InputError, MemgateError, UnsupportedJobError
from memgate.gpus import find_gpu
from memgate.jobspec import parse_job_spec
from memgate.timeline import Category
from memgate_worker.engines.phantom.engine import PhantomEngine
from memgate_worker.runtimes.runtime import read_runtimes
from tests.bench.breadth_tasks import ANSWERED, ask
from tests.bench.diffusion_jobs import MODELS, diffusers_jobs
from tests.integration.rank_scripts import bytes_of

RUNTIME = read_runtimes()["torch-2.14"]

pytestmark = pytest.mark.skipif(
    not RUNTIME.is_installed, reason="runtime torch-2.14 is not built: make runtime"
)

#: a U-Net with what SDXL is told, a row of patches, a video, an autoencoder
SAMPLE = [
    "UNet2DConditionModel",
    "FluxTransformer2DModel",
    "CogVideoXTransformer3DModel",
    "AutoencoderKL",
    "ControlNetModel",
]

_BERT = {
    "num_attention_heads": 4,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
}


def _ask(engine: PhantomEngine, spec: dict[str, Any]) -> Any:
    return engine.trace(parse_job_spec(spec), find_gpu("a100-40"))


def _job(name: str, **changes: Any) -> dict[str, Any]:
    return diffusers_jobs([name])[name][0] | changes


_ENCODERS = "ENCODERS_NOT_COUNTED"


@pytest.mark.parametrize(
    ("name", "precomputed", "want"),
    [
        ("UNet2DConditionModel", False, True),
        ("UNet2DConditionModel", True, False),
        ("AutoencoderKL", False, False),
        ("UNet2DModel", False, False),
    ],
)
def test_models_that_make_the_inputs_are_doubted_unless_they_are_not_there(
    engine: PhantomEngine, name: str, precomputed: bool, want: bool
) -> None:
    """A model of latents or texts is admitted plainly only if they are made before training."""
    job = _job(name)
    job["input"] = job["input"] | {"precomputed": precomputed}

    said = [doubt.code for doubt in _ask(engine, job).doubts]

    assert (_ENCODERS in said) is want


def test_a_sample_of_diffusers_is_answered(engine: PhantomEngine) -> None:
    """One of each kind that is fed in another way."""
    said = {name: ask(engine, specs) for name, specs in diffusers_jobs(SAMPLE).items()}

    assert said == dict.fromkeys(SAMPLE, ANSWERED)


def test_a_controlnet_is_trained_through_a_frozen_model(engine: PhantomEngine) -> None:
    """Both have weights on the GPU; gradients and optimizer state are those of one."""
    job = _job("ControlNetModel", optimizer={"name": "AdamW"}, precision="amp-bf16")
    run = _ask(engine, job)
    trained = bytes_of(run, Category.OPTIMIZER_STATE) / 2

    assert _ask(engine, _job("ControlNetModel")).num_parameters == run.num_parameters
    assert trained / 4 < run.num_parameters  # what is frozen has no state
    assert bytes_of(run, Category.PARAMETERS) == pytest.approx(
        trained + 2 * (run.num_parameters - trained / 4), rel=0.02
    )


@pytest.mark.parametrize(("field", "value"), [("lora", {"rank": 4}), ("ema", True)])
def test_what_would_concern_a_frozen_model_too_is_refused(
    engine: PhantomEngine, field: str, value: Any
) -> None:
    """An adapter would be put into it, and an average would be kept of it."""
    with pytest.raises(UnsupportedJobError, match=f"{field}: memgate does not know"):
        _ask(engine, _job("ControlNetModel", **{field: value}))


def test_more_than_twenty_classes_are_asked_about() -> None:
    """The table has what people train."""
    assert len(MODELS) > 50


def test_what_is_known_of_transformers_is_known_of_diffusers(engine: PhantomEngine) -> None:
    """Adapters, checkpointing, precision and small optimizers; only the adapter is trained."""
    job = _job(
        "UNet2DConditionModel",
        lora={"rank": 4},
        precision="bf16",
        gradient_checkpointing=True,
        optimizer={"name": "bitsandbytes.AdamW8bit"},
    )
    whole = _ask(engine, _job("UNet2DConditionModel", optimizer={"name": "AdamW"}))
    adapted = _ask(engine, job)

    assert adapted.num_parameters > whole.num_parameters


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        (
            _job("FluxTransformer2DModel") | {"input": {"shape": [3, 32, 32]}},
            "input.shape is [3, 32, 32]: FluxTransformer2DModel takes 64 channels; give that of one"
            " latent: [channels, height, width]",
        ),
        (
            _job("FluxTransformer2DModel") | {"input": {"shape": [16, 32, 32]}},
            "input.sequence_length is null: FluxTransformer2DModel is told by text what to make",
        ),
        (
            _job("FluxTransformer2DModel") | {"input": {}},
            "input.shape is null: the configuration of FluxTransformer2DModel does not say it",
        ),
        (
            _job("DiTTransformer2DModel")
            | {"model": {"source": "diffusers", "class": "DiTTransformer2DModel"}}
            | {"input": {"shape": [4, 8, 32, 32]}},
            "takes 3 dimensions",
        ),
        (
            {
                "model": {
                    "source": "diffusers",
                    "class": "UNet2DConditionModel",
                    "config": {"cross_atention_dim": 768},
                },
                "input": {"shape": [4, 8, 8]},
                "batch_size": 1,
            },
            "the configuration has no such key; did you mean 'cross_attention_dim'",
        ),
        (
            {
                "model": {"source": "diffusers", "class": "UNet2DConditionalModel"},
                "input": {"shape": [4, 8, 8]},
                "batch_size": 1,
            },
            "diffusers has no such class; did you mean 'UNet2DConditionModel'",
        ),
    ],
)
def test_what_does_not_suit_a_model_is_refused_by_its_field(
    engine: PhantomEngine, spec: dict[str, Any], want: str
) -> None:
    """With what the model does take."""
    with pytest.raises(InputError) as raised:
        _ask(engine, spec)

    assert want in raised.value.message


def test_a_model_that_steers_another_is_not_answered_alone(engine: PhantomEngine) -> None:
    """Most of its memory is the other's."""
    with pytest.raises(UnsupportedJobError, match="the frozen model that it steers"):
        _ask(engine, _job("SD3ControlNetModel"))


def _embedding(model: dict[str, Any], **given: Any) -> dict[str, Any]:
    spec = {"input": {"sequence_length": 32}, "batch_size": 4, "loss": "contrastive", **given}
    return {"model": {"source": "transformers", **model}, **spec}


def test_embeddings_are_trained_without_a_head(engine: PhantomEngine) -> None:
    """A class without one as it is, a public model without the one that it is listed with."""
    by_class = _ask(engine, _embedding({"class": "BertModel", "config": _BERT}))
    named = _ask(
        engine, _embedding({"name": "sentence-transformers/all-MiniLM-L6-v2", "config": _BERT})
    )

    assert by_class.num_parameters == named.num_parameters


@pytest.mark.parametrize(
    ("spec", "want"),
    [
        (_embedding({"class": "BertForMaskedLM"}), "did you mean 'BertModel'?"),
        (_embedding({"class": "BertModle"}), "did you mean 'BertModel'"),
        (_embedding({"class": "BertModel", "config": _BERT}, input={}), "give it alone"),
        (_embedding({"class": "T5Model"}), "also writes"),
        (_embedding({"class": "ViTModel"}), "texts, which it does not take"),
    ],
)
def test_what_makes_no_embedding_of_a_text_is_refused(
    engine: PhantomEngine, spec: dict[str, Any], want: str
) -> None:
    """With the class to take instead, or what is missing."""
    with pytest.raises(MemgateError) as raised:
        _ask(engine, spec)

    assert want in raised.value.message
