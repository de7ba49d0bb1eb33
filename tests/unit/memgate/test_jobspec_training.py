"""Job specs: attention, compilation, liger-kernel and offloading, and which jobs can have them."""

from __future__ import annotations

from typing import Any

import pytest

from memgate.errors import InputError
from memgate.jobspec import Attention, CompileSpec, check_supported, parse_job_spec

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
FLASH_CONFIG: dict[str, Any] = {
    "model": GPT2["model"] | {"config": {"attn_implementation": "flash_attention_2"}}
}


@pytest.mark.parametrize(
    ("change", "want"),
    [
        ({}, False),
        ({"attention": "sdpa"}, False),
        ({"attention": "flash", "precision": "bf16"}, True),
        (FLASH_CONFIG | {"precision": "amp-bf16"}, True),
    ],
)
def test_flash_attention_is_asked_for(change: dict[str, Any], want: bool) -> None:
    """By the spec, or by the key of transformers' configurations."""
    spec = parse_job_spec(GPT2 | change)
    check_supported(spec)

    assert spec.uses_flash_attention is want


@pytest.mark.parametrize(
    ("job", "want_message"),
    [
        (RESNET | {"attention": "eager"}, "attention is 'eager': it is a choice of transformers'"),
        (GPT2 | {"attention": "flash"}, "flash-attn computes in 16 bits, and precision is fp32"),
        (GPT2 | FLASH_CONFIG, "flash-attn computes in 16 bits"),
        (GPT2 | FLASH_CONFIG | {"attention": "sdpa"}, "which says the same; leave out one"),
        (GPT2 | {"attention": "flsh"}, "did you mean 'flash'?"),
        (
            GPT2 | {"compile": {"mod": "default"}},
            "compile.mod is 'default': there is no such field; did you mean",
        ),
        (GPT2 | {"compile": "yes"}, "job spec: compile is 'yes': it must be true or false"),
        (GPT2 | {"lora": {"target_modules": 5}}, "lora.target_modules is 5: it must be a list"),
        (GPT2 | {"compile": {"mode": "default", "options": {}}}, "takes 'mode' or 'options'"),
        (RESNET | {"liger": True}, "liger-kernel has layers for transformers"),
        (
            GPT2 | {"offload": {"optimizer": True}, "optimizer": {"name": "bitsandbytes.Lion"}},
            "bitsandbytes.Lion is not one; give one, such as AdamW",
        ),
        (
            GPT2 | {"offload": {"optimizer": True}, "optimizer": {"name": "LBFGS"}},
            "LBFGS calls the model itself",
        ),
        (
            GPT2 | {"quantization": {"method": "fp8"}, "lora": {}},
            "bitsandbytes has no fp8 that can be trained with an adapter; torchao has; or give nf4",
        ),
        (
            GPT2 | {"quantization": {"method": "fp4", "library": "torchao"}, "lora": {}},
            "torchao has no fp4",
        ),
        (
            GPT2 | {"offload": {"optimizer": True}, "precision": "amp-fp16"},
            "use amp-bf16",
        ),
        (
            GPT2 | {"input": {"sequence_length": 128, "dtype": "bfloat16"}},
            "input.dtype is 'bfloat16': it has no effect on what transformers' models take",
        ),
        (
            RESNET | {"input": {"shape": [3, 64, 64], "dtype": "float16"}},
            "input.dtype is 'float16': with precision fp32 weights are float32, and a model takes",
        ),
        (
            RESNET | {"input": {"shape": [3, 64, 64], "dtype": "float16"}, "precision": "bf16"},
            "with precision bf16 weights are bfloat16",
        ),
        (
            GPT2 | {"lora": {}, "quantization": {"method": "int8", "compute": "bf16"}},
            "quantization.compute is 'bf16': bitsandbytes' 8-bit layers compute in fp16",
        ),
        (
            RESNET | {"input": {"shape": [3, 64, 64], "precomputed": True}},
            "input.precomputed is true: it is for latents of diffusers' models",
        ),
    ],
)
def test_what_a_job_cannot_have_is_refused(job: dict[str, Any], want_message: str) -> None:
    """By name, with the next step."""
    with pytest.raises(InputError) as raised:
        parse_job_spec(job)

    assert want_message in raised.value.message


@pytest.mark.parametrize(
    ("dtype", "precision"),
    [("float16", "amp-bf16"), ("bfloat16", "bf16"), ("float32", "fp16"), ("float32", "tf32")],
)
def test_images_of_a_type_that_weights_take_are_accepted(dtype: str, precision: str) -> None:
    """Autocast casts them all; batches in 32 bits get the type of the weights."""
    given = {"input": {"shape": [3, 64, 64], "dtype": dtype}, "precision": precision}

    assert parse_job_spec(RESNET | given).input.dtype == dtype


def test_a_wrong_model_hides_no_other_mistake() -> None:
    """Attention cannot be checked without it, and is not blamed."""
    with pytest.raises(InputError) as raised:
        parse_job_spec(GPT2 | {"model": {"source": "hub"}, "attention": "flash"})

    assert "model.source" in raised.value.message
    assert "attention" not in raised.value.message


def test_compile_takes_torchs_own_arguments() -> None:
    """Or says that the defaults will do."""
    given: dict[str, Any] = {
        "mode": "max-autotune-no-cudagraphs",
        "dynamic": True,
        "fullgraph": True,
    }
    spec = parse_job_spec(GPT2 | {"compile": given})
    check_supported(spec)

    assert spec.compile == CompileSpec(**given)
    assert parse_job_spec(GPT2 | {"compile": True}).compile is True
    assert parse_job_spec(GPT2).attention is Attention.AUTO


def test_what_is_offloaded_is_given() -> None:
    """One of the two is enough."""
    jobs = [{}, {"optimizer": True}, {"activations": True}]
    given = [parse_job_spec(GPT2 | {"offload": one}).offload.is_given for one in jobs]

    assert given == [False, True, True]
