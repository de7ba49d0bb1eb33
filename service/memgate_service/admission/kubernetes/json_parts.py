"""Parts of JSON that other people wrote: what is not as expected counts as absent."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

JsonObject = Mapping[str, Any]


def as_object(value: object) -> JsonObject:
    """Return an object; an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """Return a list; an empty one for anything else."""
    return value if isinstance(value, list) else []


def escape(key: str) -> str:
    """Write a key as a part of a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")


def unescape(part: str) -> str:
    """Read a part of a JSON pointer as a key."""
    return part.replace("~1", "/").replace("~0", "~")


def find_part(value: object, key: str) -> object:
    """Return what is under a key, or at an index, as a JSON pointer names it; None for nothing."""
    if isinstance(value, list):
        is_index = key.isascii() and key.isdecimal() and int(key) < len(value)
        return value[int(key)] if is_index else None
    return as_object(value).get(unescape(key))
