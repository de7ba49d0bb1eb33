"""Checkpoints whose bytes are never written.

What a trainer gathers for a checkpoint it gathers as ever; what it gathered is not copied from the
GPU and not written. Neither takes any of the GPU's memory, and a checkpoint of a large model would
fill this machine's disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch


@contextmanager
def without_bytes() -> Iterator[None]:
    """Have torch and safetensors make empty files."""
    with patch.object(torch, "save", _save), _safetensors():
        yield


@contextmanager
def _safetensors() -> Iterator[None]:
    try:
        import safetensors.torch as library
    except ModuleNotFoundError:
        yield
        return
    # Libraries import save_file by its name; what it calls is looked up here.
    flattening = [name for name in vars(library) if name.startswith("_flatten")]
    with patch.multiple(library, serialize_file=_touch, **dict.fromkeys(flattening, _nothing)):
        yield


def _save(obj: object, f: Any, *_: Any, **__: Any) -> None:
    _touch(obj, f)


def _touch(_: object, file: Any, *__: Any, **___: Any) -> None:
    with suppress(TypeError):  # it is open already
        Path(file).touch()


def _nothing(*_: Any, **__: Any) -> dict[str, Any]:
    return {}
