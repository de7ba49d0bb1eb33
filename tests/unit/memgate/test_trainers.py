"""Trainers in job specs: what they decide themselves, and what they can be asked for."""

from __future__ import annotations

from typing import Any

import pytest

from memgate.errors import InputError, UnsupportedJobError
from memgate.jobspec import JobSpec, Trainer, ZeroGrad, check_supported, parse_job_spec

GPT2: dict[str, Any] = {
    "model": {"source": "transformers", "class": "GPT2LMHeadModel"},
    "input": {"sequence_length": 128},
    "batch_size": 8,
}
RESNET: dict[str, Any] = {
    "model": {"source": "torchvision", "name": "resnet18"},
    "input": {"shape": [3, 64, 64]},
    "batch_size": 8,
}


@pytest.mark.parametrize(
    ("trainer", "want"),
    [
        ("plain", ("SGD", None, ZeroGrad.BEFORE_BACKWARD)),
        ("hf", ("AdamW", 1.0, ZeroGrad.AFTER_STEP)),
        ("trl-sft", ("AdamW", 1.0, ZeroGrad.AFTER_STEP)),
        ("lightning", ("SGD", None, ZeroGrad.BEFORE_BACKWARD)),
    ],
)
def test_a_spec_says_what_its_trainer_does(
    trainer: str, want: tuple[str, float | None, ZeroGrad]
) -> None:
    """What is not said is as the library has it, also after the queue."""
    spec = parse_job_spec({**GPT2, "trainer": trainer})

    assert (spec.optimizer.name, spec.clip_grad_norm, spec.zero_grad) == want
    assert JobSpec.model_validate_json(spec.model_dump_json(by_alias=True)) == spec
    check_supported(spec)


def test_what_is_said_goes_before_what_a_trainer_does() -> None:
    """An optimizer and a norm of one's own."""
    given = {"optimizer": {"name": "SGD"}, "clip_grad_norm": 0.5, "zero_grad": "after_step"}

    spec = parse_job_spec({**GPT2, "trainer": "hf", **given})

    assert (spec.optimizer.name, spec.clip_grad_norm) == ("SGD", 0.5)


def test_every_trainer_has_a_name() -> None:
    """Messages name it as its library does."""
    assert [one.full_name for one in Trainer if one.is_of_transformers] == [
        "transformers' Trainer",
        "trl's SFTTrainer",
    ]


@pytest.mark.parametrize(
    ("job", "want_message"),
    [
        ({**GPT2, "trainer": "hf", "zero_grad": "before_backward"}, "drops gradients itself"),
        ({**GPT2, "trainer": "lightning", "zero_grad": "after_step"}, "leave it out"),
        ({**RESNET, "trainer": "hf"}, "use 'plain' or 'lightning' for one of torchvision"),
        ({**RESNET, "trainer": "lightning", "channels_last": True}, "channels_last is true: Light"),
        (
            {**GPT2, "trainer": "hf", "compile": {"fullgraph": True}},
            "compile.fullgraph is true: transformers' Trainer can be told a backend and a mode",
        ),
        ({**GPT2, "trainer": "hf", "ema": True}, "ema is true: transformers' Trainer keeps"),
        ({**RESNET, "packing": True}, "packing is true: sequences of text are packed"),
        ({**GPT2, "input": {}, "packing": True}, "up to 'input.sequence_length'"),
        ({**RESNET, "eval": {"generate": 8}}, "eval.generate is 8: models of transformers"),
        (
            {
                **GPT2,
                "trainer": "trl-sft",
                "lora": {},
                "quantization": {"method": "nf4", "prepare": False},
            },
            "trl's SFTTrainer prepares quantised models itself",
        ),
        (
            {
                **GPT2,
                "trainer": "hf",
                "lora": {},
                "quantization": {"method": "int8", "library": "torchao"},
            },
            "transformers' Trainer trains what bitsandbytes quantised",
        ),
        ({**GPT2, "trainer": "hf", "loss": "contrastive"}, "the loss that a model computes itself"),
        ({**GPT2, "trainer": "hff"}, "did you mean 'hf'"),
        ({**GPT2, "trainer": ["hf"]}, "trainer is"),
    ],
)
def test_what_a_trainer_cannot_do_is_refused(job: dict[str, Any], want_message: str) -> None:
    """By name, with what to do instead."""
    with pytest.raises(InputError) as raised:
        parse_job_spec(job)

    assert want_message in raised.value.message


def test_a_trainer_prepares_quantised_models_or_is_told() -> None:
    """Only trl does it by itself."""
    quantised = {"lora": {}, "quantization": {"method": "nf4", "prepare": False}}

    assert parse_job_spec({**GPT2, "trainer": "hf", **quantised}).quantization is not None
    prepared = {"lora": {}, "quantization": "nf4"}
    assert parse_job_spec({**GPT2, "trainer": "trl-sft", **prepared}).quantization is not None


def test_text_of_a_length_can_be_packed() -> None:
    """By every trainer."""
    assert all(parse_job_spec({**GPT2, "trainer": one, "packing": True}).packing for one in Trainer)


@pytest.mark.parametrize(
    ("job", "want_message"),
    [
        (
            {**GPT2, "trainer": "hf", "offload": {"optimizer": True}},
            "memgate cannot run this yet with the trainer hf",
        ),
        ({**RESNET, "trainer": "lightning", "offload": {"activations": True}}, "the trainer light"),
        ({**GPT2, "compile": True, "offload": {"activations": True}}, "that are offloaded"),
    ],
)
def test_what_memgate_cannot_combine_yet_is_our_limit(
    job: dict[str, Any], want_message: str
) -> None:
    """The spec is right, and says what the job is; no field is called a mistake."""
    with pytest.raises(UnsupportedJobError) as raised:
        check_supported(parse_job_spec(job))

    assert want_message in raised.value.message


def test_gradients_need_not_be_clipped() -> None:
    """0 says so, where a trainer clips unless it is told."""
    assert parse_job_spec({**GPT2, "trainer": "hf", "clip_grad_norm": 0.0}).clip_grad_norm == 0
