"""Names of public models: what is found, what is suggested, and the shape of the table."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from memgate.errors import InputError
from memgate.jobspec import ModelSource
from memgate_worker.jobs import public
from memgate_worker.jobs.public import find_public_model, list_public_models

FAMILIES = sorted((Path(public.__file__).parent / "public_models").glob("*.json"))

#: as on the hub: an owner and a name
_NAME = re.compile(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+")

_ENTRY = {"class", "parameters", "config", "also"}


@pytest.mark.parametrize("path", FAMILIES, ids=lambda path: path.stem)
def test_a_family_has_the_shape_of_a_family(path: Path) -> None:
    """A misspelt key would be ignored."""
    family: dict[str, Any] = json.loads(path.read_text())

    assert family.keys() - {"source"} == {"class", "sources", "config", "models"}
    assert family.get("source", "diffusers") == "diffusers"
    assert family["sources"]
    assert family["models"]
    for name, entry in family["models"].items():
        assert {"config"} <= entry.keys() <= _ENTRY, name
        assert all(map(_NAME.fullmatch, (name, *entry.get("also", ()))))
        assert not entry.keys() & {"parameters"} or entry["parameters"] > 1_000_000


def test_hundreds_of_names_are_unique_whatever_their_case() -> None:
    """A second entry of a name would never be found, or make both ambiguous."""
    names = [model.name.lower() for model in list_public_models()]

    assert len(names) > 800
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("openai-community/gpt2", "openai-community/gpt2"),
        ("gpt2", "openai-community/gpt2"),
        ("GPT2-XL", "openai-community/gpt2-xl"),
        ("meta-llama/llama-3.2-1b", "meta-llama/Llama-3.2-1B"),
        ("Llama-3.2-1B", "meta-llama/Llama-3.2-1B"),  # others republish it, the same in size
        ("bert-base-uncased", "google-bert/bert-base-uncased"),
    ],
)
def test_a_model_is_found_in_any_case_and_without_its_owner(name: str, want: str) -> None:
    """Where one model is meant."""
    assert find_public_model(name).name == want


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("gpt-2", "openai-community/gpt2"),
        ("Qwen2", "Qwen/Qwen2-7B"),
        ("llama2-7b", "meta-llama/Llama-2-7b-hf"),
        ("bert-base", "google-bert/bert-base-cased"),
        ("google/bert-base-uncased", "google-bert/bert-base-uncased"),
        ("mistral-7b", "mistralai/Mistral-7B-v0.1"),
    ],
)
def test_an_unknown_name_has_near_ones(name: str, want: str) -> None:
    """What begins in the same way goes first."""
    with pytest.raises(InputError) as raised:
        find_public_model(name)

    (mistake,) = raised.value.mistakes
    assert mistake.field == "model.name"
    assert want in mistake.near


def test_a_name_of_several_models_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two owners may give one name to models that differ."""
    first, second = list_public_models()[:2]
    monkeypatch.setattr(
        public, "_spellings", lambda: {"twice": {first.entry: first, second.entry: second}}
    )

    with pytest.raises(InputError, match="several public models bear this name") as raised:
        find_public_model("Twice")

    assert raised.value.mistakes[0].near == (first.name, second.name)


def test_a_nonsense_name_has_no_near_one() -> None:
    """And is told what to give instead."""
    with pytest.raises(InputError, match="give 'class' and 'config'") as raised:
        find_public_model("/")

    assert raised.value.mistakes[0].near == ()


def test_a_model_of_another_library_is_named_for_what_it_is() -> None:
    """With the field to change."""
    with pytest.raises(InputError) as raised:
        find_public_model("FLUX.1-dev")

    assert raised.value.message == (
        "model.source is 'transformers': black-forest-labs/FLUX.1-dev is a model of diffusers;"
        " write 'source': 'diffusers'"
    )
    assert find_public_model("flux.1-dev", ModelSource.DIFFUSERS).class_name.startswith("Flux")


@pytest.mark.parametrize("name", ["GPT2LMHeadModel", "GPT2LMHeadModle"])
def test_a_class_is_told_where_it_goes(name: str) -> None:
    """Published configurations have both, and people mix them up."""
    with pytest.raises(InputError, match="'class': 'GPT2LMHeadModel', with its 'config'"):
        find_public_model(name)
