"""After how many steps operators repeat."""

from __future__ import annotations

import time
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memgate.iterations import _find_length


def _find_length_slowly(names: Sequence[tuple[str, ...]]) -> int:
    """Compare every step with every other: quadratic, and plain to see."""
    num = len(names)
    for length in range(1, num):
        pairs = [(at, at - length) for at in range(length, num)]
        later = [pair for pair in pairs if pair[1] > 0] or pairs
        if all(names[one] == names[other] for one, other in later):
            return length
    return num if num <= 2 else 1


_NAMES = st.lists(st.sampled_from([("mm",), ("mm", "add"), ()]), min_size=1, max_size=5)


@given(_NAMES, _NAMES, st.integers(min_value=1, max_value=4))
def test_the_period_is_that_of_comparing_all(
    first: list[tuple[str, ...]], pattern: list[tuple[str, ...]], times: int
) -> None:
    """Whatever comes before the pattern, and however often it repeats."""
    names = first + pattern * times

    assert _find_length(names) == _find_length_slowly(names)


@pytest.mark.parametrize("last", [(), ("mm",), ("add",)], ids=["nothing", "the same", "other"])
def test_hundreds_of_thousands_of_steps_take_seconds(last: tuple[str, ...]) -> None:
    """Each with each would take hours."""
    names = [("mm",), *[()] * 299_999, last]
    start = time.process_time()

    _find_length(names)

    assert time.process_time() - start < 10
