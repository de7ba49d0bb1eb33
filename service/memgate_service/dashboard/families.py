"""A model's name -> the family it belongs to, as people name it. Pure.

Names say how large a model is, or what it is used for: ``resnet50``, ``vit_b_16``,
``openai-community/gpt2-medium``, ``GPT2LMHeadModel``. What remains without that is the family.
Where a number is part of a name (``gpt2``, ``t5``, ``qwen3``) it stays: sizes have two digits, or a
point.
"""

from __future__ import annotations

import re

#: what transformers adds to a model's name for its task
_USE = re.compile(r"(For[A-Z]\w*|LMHead\w*|DoubleHeads\w*|Model)$")

#: a size: resnet50, or mnasnet1_0, whose point is written as an underscore
_SIZE = re.compile(r"^([a-z]+?)(\d{2,}|\d(?=_\d(_|$)))")

#: names of two words
_TWO_WORDS = re.compile(r"^gpt-(neox|neo|j)\b")


def family_of(model: str) -> str:
    """Return the family of a model."""
    name = _USE.sub("", model.rpartition("/")[2]).lower()
    name = _TWO_WORDS.sub(r"gpt\1", name)
    if found := _SIZE.match(name):
        return found[1]
    return re.split(r"[-_. ]", name)[0] or model
