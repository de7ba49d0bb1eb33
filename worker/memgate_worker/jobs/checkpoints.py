"""Checkpoints whose bytes are never written.

What a trainer gathers for a checkpoint it gathers as ever; what it gathered is not copied from the
GPU and not written. Neither takes any of the GPU's memory, and a checkpoint of a large model would
fill this machine's disk.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import torch


@contextmanager
def without_bytes() -> Iterator[None]:
    """Have torch and safetensors make empty files."""
    with _replaced(torch, {"save": _save}), _safetensors():
        yield


@contextmanager
def _safetensors() -> Iterator[None]:
    try:
        library = importlib.import_module("safetensors.torch")
    except ModuleNotFoundError:
        yield
        return
    # Libraries import save_file by its name; what it calls is looked up here.
    instead: dict[str, Any] = {name: _nothing for name in vars(library) if "_flatten" in name}
    with _replaced(library, {"serialize_file": _touch, **instead}):
        yield


@contextmanager
def _replaced(module: ModuleType, instead: dict[str, Any]) -> Iterator[None]:
    kept = {name: getattr(module, name) for name in instead}
    vars(module).update(instead)
    try:
        yield
    finally:
        vars(module).update(kept)


def _save(obj: object, f: Any, *_: Any, **__: Any) -> None:
    _touch(obj, f)


def _touch(_: object, file: Any, *__: Any, **___: Any) -> None:
    with suppress(TypeError):  # it is open already
        Path(file).touch()


def _nothing(*_: Any, **__: Any) -> dict[str, Any]:
    return {}
