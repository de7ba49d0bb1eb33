"""Changing one field of the text of a spec leaves the rest as it was written."""

from __future__ import annotations

from typing import Any

import pytest

from memgate.spec_edit import set_field
from memgate.spec_text import SpecTextError, read_text

TEXT = """\
# mine
model:
  source: torchvision  # vision
  name: resnet50

# how large
input: {shape: [3, 224, 224]}
batch_size: 64 # large
"""


@pytest.mark.parametrize(
    ("field", "value", "want"),
    [
        ("batch_size", 3, TEXT.replace("64 # large", "3")),
        ("precision", "bf16", f"{TEXT}precision: bf16\n"),
        ("input", None, TEXT.replace("input: {shape: [3, 224, 224]}\n", "")),
        (
            "model",
            {"source": "timm", "name": "vit"},
            TEXT.replace(
                "model:\n  source: torchvision  # vision\n  name: resnet50\n",
                "model: {source: timm, name: vit}\n",
            ),
        ),
        ("absent", None, TEXT),
    ],
    ids=["a number", "a new field", "taken out", "a part", "nothing to take out"],
)
def test_the_rest_stays_as_it_was_written(field: str, value: Any, want: str) -> None:
    """Comments, blank lines and order, where each field has lines of its own."""
    assert set_field(TEXT, field, value) == want


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("", {"a": 1}),
        ("{b: 2, a: 5}\n", {"b": 2, "a": 1}),
        ('{"b": 2}', {"b": 2, "a": 1}),
        ('{"b":\t2}', {"b": 2, "a": 1}),
        ("b: 2\na: [\n  1,\n  2]\n", {"b": 2, "a": 1}),
        ("? a\n: 5\n", {"a": 1}),
        ("--- {b: 2}\n", {"b": 2, "a": 1}),
        ("b: 2", {"b": 2, "a": 1}),
        ("a:\nb: 2\n", {"a": 1, "b": 2}),
    ],
)
def test_any_form_of_a_document_is_changed(text: str, want: dict[str, Any]) -> None:
    """What cannot be changed in place is written anew, with the same content."""
    assert read_text(set_field(text, "a", 1)) == want


def test_the_last_field_can_go() -> None:
    """Nothing is left of it."""
    assert set_field("a: 1\n", "a", None).strip() in ("", "{}")


@pytest.mark.parametrize("text", ["[1]", "a: ["])
def test_what_is_not_a_spec_is_refused(text: str) -> None:
    """It has no fields."""
    with pytest.raises(SpecTextError):
        set_field(text, "a", 1)
