"""Amounts are read as Kubernetes reads them, and nothing else is taken for one."""

from __future__ import annotations

from decimal import Decimal

import pytest

from memgate.errors import InputError
from memgate_service.admission.kubernetes.quantities import is_nothing, read_quantity


@pytest.mark.parametrize(
    ("text", "want"),
    [
        *(("8000", 8000), ("8k", 8000), ("4Ki", 4096), ("1500m", "1.5"), ("1e3", 1000)),
        *(("1E3", 1000), ("1E", 10**18), ("0.5", "0.5"), (".5", "0.5"), ("5.", 5), ("+5", 5)),
        *((16, 16), (1e3, 1000), ("2Pi", 2 << 50), ("500u", "0.0005")),
    ],
)
def test_an_amount_is_read(text: object, want: object) -> None:
    """Decimal and binary units, thousandths and exponents."""
    assert read_quantity("it", text) == Decimal(str(want))


@pytest.mark.parametrize(
    "text",
    [
        *("", "x", "1ki", "1KI", "1gi", "1_000", "\u0661", "nan", "inf", "0", "-1", "1 ", "1e"),
        *("9Ei", "1e999", "1" * 100, None, True, [1], {}),
    ],
)
def test_what_is_no_amount_is_named(text: object) -> None:
    """Neither is what Python alone would take for a number."""
    with pytest.raises(InputError, match="it is "):
        read_quantity("it", text)


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("0", True),
        (0, True),
        ("0k", True),
        ("0.0", True),
        ("0e3", True),
        ("1m", False),
        ("", False),
    ],
)
def test_nothing_is_told_from_something(text: object, want: bool) -> None:
    """Many a form writes 0 where no GPU is wanted."""
    assert is_nothing(text) is want
