"""Texts that people write become job specs, or a sentence that says what is wrong."""

from __future__ import annotations

import pytest

from memgate.errors import InputError
from memgate.spec_text import read_job_text

_YAML = """
model: {source: torchvision, name: resnet18}
input: {shape: [3, 32, 32]}
batch_size: 4
"""


def test_json_and_yaml_say_the_same() -> None:
    """Which of the two it is, is found out."""
    as_json = (
        '{"model": {"source": "torchvision", "name": "resnet18"},'
        ' "input": {"shape": [3, 32, 32]}, "batch_size": 4}'
    )
    assert read_job_text(as_json) == read_job_text(_YAML)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("a: b: c", "neither JSON nor YAML: mapping values are not allowed here in line 1"),
        ("a: [&x 1, *x]", "aliases are not allowed in line 1, column 11"),
        ("\x00", "neither JSON nor YAML"),
        ("a: !!python/object:os.system x", "could not determine a constructor"),
        ("model: .nan", "holds what JSON can hold"),
        ("model: 2026-01-01", "holds what JSON can hold"),
        ("[" * 10_000, "holds what JSON can hold"),
        ("x" * 300_000, "may have 262144 characters, and this has 300000"),
        ("batch_size: 4", "model is missing"),
        ("", "job spec"),
    ],
)
def test_what_is_no_spec_is_refused_in_a_sentence(text: str, want: str) -> None:
    """Never another error: texts come from strangers."""
    with pytest.raises(InputError) as refused:
        read_job_text(text)
    assert want in refused.value.message
