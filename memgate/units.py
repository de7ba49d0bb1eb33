"""Values to text for people. Inside the program a size is always an ``int`` of bytes."""

from __future__ import annotations

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


def format_size(size_bytes: int) -> str:
    """Write a size the way PyTorch writes it in its messages: 512 bytes, 1.50 KiB, 20.00 MiB."""
    if size_bytes <= KIB:
        return f"{size_bytes} bytes"
    if size_bytes <= MIB:
        return f"{size_bytes / KIB:.2f} KiB"
    if size_bytes <= GIB:
        return f"{size_bytes / MIB:.2f} MiB"
    return f"{size_bytes / GIB:.2f} GiB"


def format_count(number: int | None) -> str:
    """Write a number of parameters for people: 124 M, 6.74 B; nothing if it is not known."""
    if number is None:
        return ""
    unit, size = ("B", 1_000_000_000) if number >= 1_000_000_000 else ("M", 1_000_000)
    return f"{number / size:.3g} {unit}"


def clip(value: object, *, limit: int = 80) -> str:
    """Write a value for a message, cut if it is long: an error is one sentence."""
    try:
        text = repr(value)
    except RecursionError:
        text = f"a deeply nested {type(value).__name__}"
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
