"""Figures -> cells and tables of Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    lines = ["| " + " | ".join(cells) + " |" for cells in (head, *rows)]
    return [lines[0], "|" + "---|" * len(head), *lines[1:]]


def percent(share: float | None, digits: int = 1) -> str:
    """Write a share; nothing for None."""
    return "" if share is None else f"{100 * share:.{digits}f} %"


def gigabytes(size_bytes: float | None) -> str:
    """Write a size in units of 10^9 bytes, as papers do; nothing for None."""
    return "" if size_bytes is None else f"{size_bytes / 1e9:.2f}"


def number(value: float | None, digits: int = 2) -> str:
    """Write a number; nothing for None."""
    return "" if value is None else f"{value:.{digits}f}"
