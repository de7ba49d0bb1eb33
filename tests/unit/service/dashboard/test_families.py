"""Families of models, by their names."""

from __future__ import annotations

import pytest

from memgate_service.dashboard.families import family_of


@pytest.mark.parametrize(
    ("family", "models"),
    [
        ("resnet", ["resnet18", "resnet152", "resnet50.a1_in1k"]),
        ("convnext", ["convnext_tiny", "convnext_base"]),
        ("mnasnet", ["mnasnet1_0", "mnasnet0_5"]),
        ("mobilenet", ["mobilenet_v2", "mobilenet_v3_small"]),
        ("regnet", ["regnet_y_400mf"]),
        ("vgg", ["vgg16", "vgg11_bn"]),
        ("vit", ["vit_b_16", "vit_base_patch16_224.augreg_in21k"]),
        ("gpt2", ["openai-community/gpt2", "openai-community/gpt2-xl", "GPT2LMHeadModel"]),
        ("gptneo", ["EleutherAI/gpt-neo-125m", "GPTNeoForCausalLM"]),
        ("t5", ["google-t5/t5-base", "T5ForConditionalGeneration"]),
        ("opt", ["facebook/opt-1.3b", "OPTForCausalLM"]),
        ("qwen3", ["Qwen/Qwen3-4B", "Qwen3ForCausalLM"]),
        ("bert", ["google-bert/bert-base-uncased", "BertForMaskedLM", "BertModel"]),
        ("llama", ["meta-llama/Llama-3.2-1B", "LlamaForCausalLM"]),
        ("trace", ["trace"]),
    ],
)
def test_models_of_a_family_are_one_group(family: str, models: list[str]) -> None:
    """However large they are, whoever published them, and by name or by class."""
    assert {family_of(model) for model in models} == {family}


@pytest.mark.parametrize("odd", ["", "_", "-x", "/", "Model", "For", "50"])
def test_an_odd_name_is_a_family_too(odd: str) -> None:
    """Nothing that somebody may call a model breaks the page."""
    assert isinstance(family_of(odd), str)
