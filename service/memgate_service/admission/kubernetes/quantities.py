"""An amount as Kubernetes writes it (8000, 8k, 4Gi, 1500m, 1e3) -> a number."""

from __future__ import annotations

import re
from decimal import Decimal

from memgate.errors import InputError

_QUANTITY = re.compile(
    r"([+-]?(?:[0-9]{1,40}\.?[0-9]{0,40}|\.[0-9]{1,40}))"
    r"([numkMGTPE]?|[KMGTPE]i|[eE][+-]?[0-9]{1,3})"
)
_UNITS = {"n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1)}
_UNITS |= {unit: Decimal(1000) ** power for power, unit in enumerate("kMGTPE", start=1)}
_UNITS |= {f"{unit}i": Decimal(1024) ** power for power, unit in enumerate("KMGTPE", start=1)}

#: more than there is of anything here: 1 EiB
_MOST = 1 << 60


def read_quantity(name: str, value: object) -> Decimal:
    """Read an amount above 0.

    Raises:
        InputError: if it is not one, naming it.
    """
    found = _QUANTITY.fullmatch(str(value))
    if found is None:
        shown = repr(str(value)[:60])
        raise InputError(f"{name} is {shown}: write a number, such as 8000 or 4Gi")
    number, unit = found.groups()
    amount = Decimal(number) * (_UNITS[unit] if unit in _UNITS else Decimal(f"1{unit}"))
    if not 0 < amount < _MOST:
        raise InputError(f"{name} is {str(value)[:60]!r}: write a number above 0")
    return amount


def is_nothing(value: object) -> bool:
    """Say whether an amount is 0: a request for no GPU is not a request."""
    found = _QUANTITY.fullmatch(str(value))
    return found is not None and Decimal(found.group(1)) == 0
