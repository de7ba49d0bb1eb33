"""Bytes to text."""

from __future__ import annotations

import pytest

from memgate.units import GIB, KIB, MIB, format_size


@pytest.mark.parametrize(
    ("size", "want"),
    [
        (0, "0 bytes"),
        (KIB, "1024 bytes"),
        (KIB + 512, "1.50 KiB"),
        (MIB, "1024.00 KiB"),
        (20 * MIB, "20.00 MiB"),
        (GIB, "1024.00 MiB"),
        (80 * GIB, "80.00 GiB"),
        (5000 * GIB, "5000.00 GiB"),
    ],
)
def test_sizes_are_written_as_pytorch_writes_them(size: int, want: str) -> None:
    """A border belongs to the smaller unit, and there is none above GiB."""
    assert format_size(size) == want
