"""The form of *Try it* shows what is in the text of a spec, and changes it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memgate.errors import InputError
from memgate.spec_text import SpecTextError, read_text
from memgate_service.dashboard.spec_form import FIELDS, fill_form, list_models, read_form
from memgate_worker.runtimes import model_names

EMPTY = dict.fromkeys(FIELDS, "")
TEXT = """\
model: {source: timm, name: vit}
input: {shape: [3, 32, 32]}
batch_size: 8
optimizer: {name: SGD, kwargs: {momentum: 0.9}}
precision: bf16
lora: {rank: 4, dropout: 0.1}
quantization: {method: nf4, double: true}
distributed: {strategy: fsdp2, world_size: 16, cpu_offload: true}
"""


def test_a_form_shows_what_is_in_the_text() -> None:
    """Each field as it is typed."""
    assert read_form(TEXT) == {
        "model": "timm:vit",
        "input": "3x32x32",
        "batch_size": "8",
        "optimizer": "SGD",
        "precision": "bf16",
        "rank": "4",
        "quantization": "nf4",
        "strategy": "fsdp2",
        "world_size": "16",
    }


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", {}),
        ("model: {source: transformers, name: gpt2}", {"model": "gpt2"}),
        ("model: {source: transformers, class: X}", {}),
        ("model: 3\ninput: 4\noptimizer: SGD", {"optimizer": "SGD"}),
        ("input: {sequence_length: 64}", {"input": "64"}),
        ("lora: {}\nquantization: int8", {"rank": "8", "quantization": "int8"}),
        ("job: {batch_size: 3}\ngpu: t4", {"batch_size": "3"}),
    ],
)
def test_what_a_text_does_not_say_is_empty(text: str, want: dict[str, str]) -> None:
    """Half of a spec is no mistake, nor is a whole question."""
    assert read_form(text) == EMPTY | want


@pytest.mark.parametrize(
    ("name", "value", "field", "want"),
    [
        ("model", "GPT2", "model", {"source": "transformers", "name": "openai-community/gpt2"}),
        ("model", "torchvision:vgg16", "model", {"source": "torchvision", "name": "vgg16"}),
        ("input", "96", "input", {"shape": [3, 96, 96]}),
        ("batch_size", " 16 ", "batch_size", 16),
        ("optimizer", "Adam", "optimizer", {"name": "Adam", "kwargs": {"momentum": 0.9}}),
        ("precision", "fp16", "precision", "fp16"),
        ("rank", "64", "lora", {"rank": 64, "dropout": 0.1}),
        ("quantization", "int8", "quantization", "int8"),
        ("rank", "", "lora", None),
        (
            *("strategy", "zero1", "distributed"),
            {"world_size": 16, "strategy": "zero1", "cpu_offload": True},
        ),
        (
            *("world_size", "64", "distributed"),
            {"strategy": "fsdp2", "world_size": 64, "cpu_offload": True},
        ),
        ("strategy", "", "distributed", None),
    ],
)
def test_a_field_goes_into_the_text(name: str, value: str, field: str, want: Any) -> None:
    """What the form does not show of it stays, and so do the other fields."""
    document = read_text(fill_form(TEXT, name, value))

    assert isinstance(document, dict)
    assert document.get(field) == want
    assert len(document) == (8 if want else 7)


def test_an_empty_text_can_be_filled() -> None:
    """Field by field; a number is the side of an image until the model says otherwise."""
    text = ""
    for name, value in {"input": "32", "optimizer": "SGD", "rank": "2"}.items():
        text = fill_form(text, name, value)

    assert read_text(text) == {
        "input": {"shape": [3, 32, 32]},
        "optimizer": {"name": "SGD"},
        "lora": {"rank": 2},
    }


@pytest.mark.parametrize(
    ("name", "value", "want"),
    [
        ("strategy", "fsdp2", {"world_size": 8, "strategy": "fsdp2"}),
        ("world_size", "4", {"strategy": "ddp", "world_size": 4}),
    ],
)
def test_one_of_two_fields_brings_the_other(name: str, value: str, want: dict[str, Any]) -> None:
    """A job is divided over as many GPUs as a node usually has, and each has the whole model."""
    assert read_text(fill_form("", name, value)) == {"distributed": want}


def test_a_whole_question_keeps_its_gpu() -> None:
    """The job inside it is changed."""
    question = "job: {batch_size: 3, precision: bf16}\ngpu: t4\n"

    assert read_text(fill_form(question, "batch_size", "5")) == {
        "job": {"batch_size": 5, "precision": "bf16"},
        "gpu": "t4",
    }
    assert read_text(fill_form(question, "precision", "")) == {
        "job": {"batch_size": 3},
        "gpu": "t4",
    }


@pytest.mark.parametrize(
    ("text", "name", "value", "rule"),
    [
        (TEXT, "model", "gpt3", "did you mean 'openai-community/gpt2'"),
        (TEXT, "quantization", "int3", "there is no such quantisation"),
        ("[1]", "batch_size", "3", "an object with named fields"),
        ("job: 3", "batch_size", "3", "'job' is an object"),
    ],
)
def test_a_wrong_value_is_refused(text: str, name: str, value: str, rule: str) -> None:
    """With the rule; the text stays as it is."""
    with pytest.raises(InputError, match=rule):
        fill_form(text, name, value)


def test_a_text_that_cannot_be_read_has_no_form() -> None:
    """The page says why."""
    with pytest.raises(SpecTextError):
        read_form("a: [")


def test_public_models_are_offered() -> None:
    """With their size and class; without a runtime there are no others."""
    found = {one["value"]: one["about"] for one in list_models()}

    assert found["openai-community/gpt2"] == "124 M GPT2LMHeadModel"
    assert not any(name.startswith("torchvision:") for name in found)


def test_constructors_are_read_off_the_sources_of_a_runtime(tmp_path: Path) -> None:
    """Whatever decorates them; nothing is imported."""
    for library, text in {
        "torchvision": "@register_model()\n@legacy(a=1)\ndef net_b(x):\n    pass\ndef other(): 1\n",
        "timm": "@register_model\ndef net_a(x):\n    raise SystemExit\n",
    }.items():
        folder = tmp_path / library / "models"
        folder.mkdir(parents=True)
        (folder / "net.py").write_text(text)

    assert model_names._read(tmp_path) == (("torchvision", "net_b"), ("timm", "net_a"))
