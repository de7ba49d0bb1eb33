"""The answers to five questions -> a first job spec: model, input, batch, optimizer, precision."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from memgate.errors import InputError
from memgate.jobspec import ModelSource, Precision
from memgate.mistakes import Mistake, unknown_name

#: those that people use most, of torch and of the libraries that a spec may name
OPTIMIZERS = (
    *("AdamW", "SGD", "Adam", "Adafactor", "Adagrad", "Adadelta", "Adamax", "NAdam", "RAdam"),
    *("RMSprop", "Rprop", "ASGD", "LBFGS", "Muon"),
    *("bitsandbytes.AdamW8bit", "bitsandbytes.PagedAdamW8bit", "bitsandbytes.PagedAdamW32bit"),
    *("bitsandbytes.Lion8bit", "torchao.AdamW8bit", "torchao.AdamW4bit"),
)

_SHAPE = re.compile(r"\d{1,7}(\s*[x,]\s*\d{1,7}){1,7}")

#: the questions: name, words, default
QUESTIONS: Mapping[str, tuple[str, str]] = {
    "model": ("Model (a public name, torchvision:NAME or timm:NAME)", "torchvision:resnet50"),
    "input": ("Input (tokens of a sequence, or the side or shape of an image)", "224"),
    "batch_size": ("Batch size", "32"),
    "optimizer": ("Optimizer", "AdamW"),
    "precision": ("Precision", "fp32"),
}


def read_model(text: str, find_public: Callable[[str], str]) -> dict[str, Any]:
    """Return a model by what a person calls it; ``find_public`` raises for unknown public names.

    Raises:
        InputError: if it is not known, with similar names.
    """
    source, colon, name = text.strip().partition(":")
    if colon and source in (ModelSource.TORCHVISION, ModelSource.TIMM) and name:
        return {"source": source, "name": name}
    return {"source": "transformers", "name": find_public(text.strip())}


def read_input(text: str, source: str) -> dict[str, Any]:
    """Return the size of a sample: a number is a length of text, or the side of a square image.

    Raises:
        InputError: if it is neither a number nor a shape.
    """
    given = text.strip().lower()
    if given.isdecimal() and 0 < len(given) < 8:
        size = int(given)
        return {"sequence_length": size} if source == "transformers" else {"shape": [3, size, size]}
    if _SHAPE.fullmatch(given):
        return {"shape": [int(one) for one in re.findall(r"\d+", given)]}
    raise _wrong("input", text, "it must be a number such as 512, or a shape such as 3x224x224")


def read_batch(text: str) -> int:
    """Return a number of samples.

    Raises:
        InputError: if it is not one.
    """
    if not (text.strip().isdecimal() and int(text.strip()[:9]) > 0):
        raise _wrong("batch_size", text, "it must be a whole number from 1 on")
    return int(text)


def read_optimizer(text: str) -> dict[str, Any]:
    """Return an optimizer, in any case.

    Raises:
        InputError: if it is not known, with similar names.
    """
    known = {name.lower(): name for name in OPTIMIZERS}
    if text.strip().lower() not in known:
        rule = "it is not an optimizer that is known here"
        raise InputError.from_mistakes(unknown_name("optimizer", text, OPTIMIZERS, rule=rule))
    return {"name": known[text.strip().lower()]}


def read_precision(text: str) -> str:
    """Return a precision.

    Raises:
        InputError: if it is not known, with similar names.
    """
    if text.strip().lower() not in set(Precision):
        rule = "there is no such precision"
        known = [one.value for one in Precision]
        raise InputError.from_mistakes(unknown_name("precision", text, known, rule=rule))
    return text.strip().lower()


def _wrong(field: str, value: str, rule: str) -> InputError:
    return InputError.from_mistakes(Mistake(field=field, value=repr(value[:40]), rule=rule))
