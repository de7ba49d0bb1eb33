"""The text of a file of lengths -> what a job spec says instead of the file.

Lengths of samples become a distribution: training shuffles, so their order is nobody's. Lengths and
shapes of batches become a list. Which file it is, and opening it, is up to ``given_files``.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Sequence
from typing import Any

from memgate.errors import InputError
from memgate.jobspec.parts import MAX_SIZE
from memgate.jobspec.varying import MAX_BATCHES, MAX_QUANTILES, LengthsFile
from memgate.units import clip

#: of a file, in characters: some millions of lengths
MAX_LENGTHS_TEXT = 64 << 20


def replace_file(given: LengthsFile, text: str, *, of_shapes: bool) -> Any:
    """Return the list or the distribution that a file stands for.

    Raises:
        InputError: if there are no lengths in it, or something else is, with the place.
    """
    if of_shapes:
        return _check_number([_read_shape(item, at) for at, item in _items(text, given.column)])
    lengths = [_read_length(item, at) for at, item in _items(text, given.column)]
    if not lengths:
        raise InputError("there are no lengths in it")
    if given.per == "batch":
        return _check_number(lengths)
    cut = sorted(min(length, given.longest or MAX_SIZE) for length in lengths)
    return {
        "distribution": "quantiles",
        "quantiles": _take_quantiles(cut),
        "shortest": cut[0],
        "longest": given.longest or cut[-1],
        "batches": given.batches,
        "bucket": given.bucket,
        "multiple_of": given.multiple_of,
        "seed": given.seed,
    }


def _take_quantiles(lengths: Sequence[int]) -> list[int]:
    """Return sorted lengths, or as many at even shares as a distribution may have."""
    if len(lengths) <= MAX_QUANTILES:
        return list(lengths) if len(lengths) > 1 else [lengths[0], lengths[0]]
    last = len(lengths) - 1
    return [lengths[round(at * last / (MAX_QUANTILES - 1))] for at in range(MAX_QUANTILES)]


def _check_number(batches: list[Any]) -> list[Any]:
    if not batches:
        raise InputError("there are no shapes in it")
    if len(batches) > MAX_BATCHES:
        raise InputError(
            f"it has {len(batches):,} batches, and a job may list {MAX_BATCHES:,}; give fewer, or"
            " lengths of samples ('per': 'sample')"
        )
    return batches


def _items(text: str, column: str | None) -> list[tuple[str, Any]]:
    """Return what is in a file, each with its place: a list in JSON, lines, or a column of CSV."""
    if text.lstrip().startswith("["):
        try:
            return [(f"item {at}", item) for at, item in enumerate(json.loads(text), 1)]
        except (json.JSONDecodeError, RecursionError) as error:
            raise InputError(f"it begins like a list in JSON, and is none: {error}") from None
    lines = [(f"line {at}", line) for at, line in enumerate(text.splitlines(), 1) if line.strip()]
    if column is None and not re.search("[A-Za-z]{2}", lines[0][1] if lines else ""):
        return lines
    rows = csv.reader(line for _, line in lines)
    names = [name.strip() for name in next(rows, [])]
    if column is not None and column not in names:
        known = ", ".join(names)
        raise InputError(f"it has no column {column!r}; its first line is {clip(known)}")
    at = names.index(column) if column is not None else 0
    return [
        (place, row[at] if at < len(row) else "")
        for (place, _), row in zip(lines[1:], rows, strict=False)
    ]


def _read_length(item: Any, place: str) -> int:
    text = str(item).strip()
    if isinstance(item, bool) or not re.fullmatch("[0-9]{1,9}", text):
        raise InputError(f"{place} is {clip(text)}, and a length is a whole number")
    if not 1 <= int(text) <= MAX_SIZE:
        raise InputError(f"{place} is {text}, and a length is from 1 to {MAX_SIZE:,}")
    return int(text)


def _read_shape(item: Any, place: str) -> list[int]:
    """Read a shape: a list, or numbers with anything between them."""
    sides = item if isinstance(item, list) else re.split(r"[^0-9]+", str(item).strip(" ()[]"))
    return [_read_length(side, place) for side in sides]
