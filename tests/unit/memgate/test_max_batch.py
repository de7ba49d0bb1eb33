"""The largest batch that is admitted, found with few questions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memgate.decision import Decision
from memgate.max_batch import MAX_BATCH_SIZE, MaxBatch, find_max_batch, narrow_down
from memgate.report import Estimate
from tests.builders import build_estimate

#: twice the digits of the largest batch, a guess or two for each halving, and the way up
_MOST_QUESTIONS = 100

_CAPACITY = 1_000_000


def _asker(need: Callable[[int], int]) -> Callable[[int], Estimate]:
    def ask(batch_size: int) -> Estimate:
        assert 1 <= batch_size <= MAX_BATCH_SIZE
        bound = need(batch_size)
        return build_estimate(
            decision=Decision.ADMIT if bound <= _CAPACITY else Decision.REJECT,
            needs_bytes=bound,
            least_bytes=bound,
            capacity_bytes=_CAPACITY,
        )

    return ask


def _find(need: Callable[[int], int], start: int = 8) -> MaxBatch:
    found = find_max_batch(_asker(need), start)
    assert found is not None
    assert len(found.tried) <= _MOST_QUESTIONS
    return found


@pytest.mark.parametrize("start", [1, 8, 99, 100, 101, 5000])
def test_a_line_is_followed_at_once(start: int) -> None:
    """What a job needs is nearly a line: a handful of questions, wherever they begin."""
    found = _find(lambda size: 10_000 + 9_900 * size, start)

    assert found.batch_size == 100
    assert found.is_monotone
    assert found.estimate is not None
    assert found.estimate.headroom_bytes == 0
    headline = found.estimate.explanation.headline
    assert found.headline == f"batch size 100 is the largest that {headline}"
    assert len(found.tried) <= 8


def test_not_even_one_sample_fits() -> None:
    """There is no batch, and no estimate at it."""
    found = _find(lambda size: 2 * _CAPACITY + size)

    assert (found.batch_size, found.estimate) == (None, None)
    assert {batch.decision for batch in found.tried} == {Decision.REJECT}
    assert found.tried[0].batch_size == 1
    assert found.headline == (
        "even batch size 1 does not fit on rtx-3060: needs 1.91 MiB, rtx-3060 has 976.56 KiB"
    )


def test_everything_fits() -> None:
    """Up to the largest batch that is asked about."""
    assert _find(lambda _: 5).batch_size == MAX_BATCH_SIZE
    assert _find(lambda size: size // 1000).batch_size == MAX_BATCH_SIZE


def test_it_ends_when_the_time_is_up() -> None:
    """Before the next question, not in the middle of one."""
    asked: list[int] = []

    def ask(batch_size: int) -> Estimate:
        asked.append(batch_size)
        return _asker(lambda size: size)(batch_size)

    assert find_max_batch(ask, 8, goes_on=lambda: len(asked) < 3) is None
    assert len(asked) == 3
    assert find_max_batch(ask, 8, goes_on=lambda: False) is None


def test_an_uncertain_batch_is_not_admitted() -> None:
    """Only what is sure counts."""

    def ask(batch_size: int) -> Estimate:
        decision = Decision.ADMIT if batch_size <= 10 else Decision.UNCERTAIN
        return build_estimate(decision=decision, needs_bytes=batch_size, capacity_bytes=20)

    found = find_max_batch(ask, 1)

    assert found is not None
    assert found.batch_size == 10


def test_a_larger_batch_that_needs_less_is_told() -> None:
    """Another algorithm, another workspace: there may be an admitted one above."""
    found = _find(lambda size: 900_000 if size == 8 else 1000 * size)

    assert not found.is_monotone
    assert found.batch_size == 1000


def test_a_line_that_leads_nowhere_is_left() -> None:
    """Two sizes near the capacity, and everything above far from it: no step by step for ever."""
    found = _find(lambda size: {1: _CAPACITY - 1, 2: _CAPACITY}.get(size, 5), start=1)

    assert found.batch_size == MAX_BATCH_SIZE


@given(
    steps=st.lists(st.integers(0, _CAPACITY // 4), min_size=1, max_size=200),
    start=st.integers(1, 300),
)
def test_it_finds_what_trying_all_would_find(steps: list[int], start: int) -> None:
    """Whatever the shape, as long as a larger batch never needs less."""

    def need(size: int) -> int:
        return sum(steps[:size]) + (size > len(steps)) * 2 * _CAPACITY

    found = _find(need, start)

    admitted = [size for size in range(1, len(steps) + 1) if need(size) <= _CAPACITY]
    assert found.batch_size == max(admitted, default=None)
    assert found.is_monotone


@given(
    largest=st.integers(0, MAX_BATCH_SIZE - 1),
    power=st.floats(0.05, 5),
    start=st.integers(1, MAX_BATCH_SIZE),
)
def test_curves_of_any_bend_are_followed(largest: int, power: float, start: int) -> None:
    """Steep or flat at the capacity: a few dozen questions at most."""

    def need(size: int) -> int:
        return int(_CAPACITY * (size / (largest + 0.5)) ** power)

    want = largest or None
    found = _find(lambda size: need(size) + (size > largest), start)

    assert found.batch_size == want


@given(data=st.data(), start=st.integers(1, 1 << 20))
def test_it_always_ends_at_an_edge(data: st.DataObject, start: int) -> None:
    """Even if needs are without rhyme or reason: admitted there, not admitted one above."""
    needs: dict[int, int] = {}

    def need(size: int) -> int:
        if size not in needs:
            needs[size] = data.draw(st.integers(0, 2 * _CAPACITY))
        return needs[size]

    found = _find(need, start)

    if found.batch_size is not None:
        assert needs[found.batch_size] <= _CAPACITY
    if found.batch_size != MAX_BATCH_SIZE:
        assert needs[(found.batch_size or 0) + 1] > _CAPACITY


def _narrow(largest: int, guess: int, low: int = 4, high: int | None = None) -> list[int]:
    """Narrow down with a guess that never changes; return what was asked about."""
    asked: list[int] = []

    def is_admitted(size: int) -> bool:
        asked.append(size)
        return size <= largest

    assert narrow_down(is_admitted, lambda *_: guess, low, high) == min(largest, MAX_BATCH_SIZE)
    return asked


@pytest.mark.parametrize(
    ("largest", "guess", "low", "want"),
    [
        (765, 765, 4, [765, 766]),
        (764, 765, 4, [765, 764]),
        (766, 765, 4, [765, 766, 774, 770, 768, 767]),
        (4, 0, 4, [5]),
        (MAX_BATCH_SIZE + 9, MAX_BATCH_SIZE + 9, 4, [MAX_BATCH_SIZE]),
    ],
    ids=["right", "one too many", "one short", "already there", "no end"],
)
def test_the_result_and_the_one_after_it_are_asked_about(
    largest: int, guess: int, low: int, want: list[int]
) -> None:
    """A guess that is right takes two questions, and one that is nearly right a few."""
    assert _narrow(largest, guess, low) == want


@given(
    largest=st.integers(0, 5000),
    guess=st.integers(0, 9000),
    low=st.integers(0, 5000),
    more=st.none() | st.integers(1, 4000),
)
def test_guesses_of_any_kind_end_at_the_edge(
    largest: int, guess: int, low: int, more: int | None
) -> None:
    """Sizes are asked about once, and not many of them."""
    high = None if more is None else largest + more

    asked = _narrow(largest, guess, min(low, largest), high)

    assert len(asked) == len(set(asked))
    assert len(asked) <= 40


def test_guesses_that_creep_are_left() -> None:
    """After some of them, sizes are doubled and halved."""
    asked: list[int] = []

    def is_admitted(size: int) -> bool:
        asked.append(size)
        return size <= 100_000

    assert narrow_down(is_admitted, lambda low, _: low + 1, 4, None) == 100_000
    assert len(asked) < 50
