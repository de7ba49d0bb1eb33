"""What a constructor makes use of, read from its source."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any

import pytest

from memgate_worker.jobs.arguments import declared_arguments, find_arguments


class _Net:
    def __init__(self, width: int = 1, *, depth: int = 1, **kwargs: Any) -> None:
        self.ignored = kwargs  # takes anything, and uses nothing of it


class _DeepNet(_Net):
    def __init__(self, head: str = "", **kwargs: Any) -> None:
        super().__init__(**kwargs)


@dataclass
class _Config:
    stem: int = 1
    act: str = "relu"


class _ConfiguredNet:
    def __init__(self, cfg: _Config, **kwargs: Any) -> None:
        self.cfg = replace(cfg, **kwargs)


@dataclass
class _Record:
    size: int = 1

    def __post_init__(self, **kwargs: Any) -> None:
        self.size = kwargs.pop("old_size", self.size)


def _plain(a: int, *, b: int = 0) -> None:
    """Declare all there is."""


def _hands_on(name: str, **kwargs: Any) -> _Net:
    return _Net(**kwargs)


def _hands_on_a_copy(**kwargs: Any) -> _Net:
    arguments = dict({"depth": 3}, **kwargs)
    return _Net(**arguments)


def _looks_up(**kwargs: Any) -> Any:
    if "flag" in kwargs:
        return kwargs["item"], kwargs.get("got"), kwargs.setdefault("set", 1)
    return kwargs.pop("popped", None)


def _build(net: Any, variant: str, **kwargs: Any) -> Any:
    return net(**kwargs)


def _hands_on_the_class(**kwargs: Any) -> Any:
    kind = _DeepNet if kwargs.pop("deep", False) else _Net
    return _build(kind, "small", **kwargs)


def _hands_on_as_a_dictionary(**kwargs: Any) -> Any:
    return _reads(kwargs)


def _reads(settings: dict[str, Any]) -> Any:
    return settings["read"]


def _puts_into(**kwargs: Any) -> Any:
    table = {"stem_width": 1}
    table.update(**kwargs)
    return table["stem_width"]


def _wrapped(function: Any) -> Any:
    @wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return inner


@pytest.mark.parametrize(
    ("constructor", "want"),
    [
        (_plain, {"a", "b"}),
        (_Net, {"width", "depth"}),
        (_DeepNet, {"head", "width", "depth"}),
        (_ConfiguredNet, {"cfg", "stem", "act"}),
        (_Record, {"size", "old_size"}),
        (_hands_on, {"name", "width", "depth"}),
        (_hands_on_a_copy, {"width", "depth"}),
        (_looks_up, {"flag", "item", "got", "set", "popped"}),
        (_hands_on_the_class, {"deep", "net", "variant", "head", "width", "depth"}),
        (_hands_on_as_a_dictionary, {"read"}),
        (_puts_into, {"stem_width"}),
        (_wrapped(_hands_on), {"name", "width", "depth"}),
        (partial(_hands_on, "x"), {"name", "width", "depth"}),
        (dict, set()),
    ],
)
def test_arguments_are_followed_to_where_they_are_used(constructor: Any, want: set[str]) -> None:
    """Through functions, classes and those above them, copies, lookups and records."""
    assert find_arguments(constructor) == want


def test_what_is_declared_is_found_without_reading() -> None:
    """Of a class, with the classes above it; enough for nearly all arguments that are given."""
    assert declared_arguments(_DeepNet) == {"head", "width", "depth"}
    assert declared_arguments(_wrapped(_hands_on)) == {"name"}
    assert declared_arguments(dict) == frozenset()
