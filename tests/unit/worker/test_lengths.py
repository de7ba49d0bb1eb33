"""Which dimensions of batches vary, and how large each is in the longest batch."""

from __future__ import annotations

from typing import Any

import pytest

from memgate_worker.hook.memgate_hook.lengths import (
    BatchHistory,
    NoPlanError,
    Plan,
    SeenBatchTensor,
)


def history(*batches: dict[str, Any]) -> BatchHistory:
    """Make a history; a list is a shape, a pair a shape and the largest value."""
    made = BatchHistory()
    for batch in batches:
        made.add(see(**batch))
    return made


def see(**tensors: Any) -> dict[str, SeenBatchTensor]:
    """Make a batch."""
    return {
        place: SeenBatchTensor(tuple(given))
        if isinstance(given, list)
        else SeenBatchTensor(tuple(given[0]), given[1])
        for place, given in tensors.items()
    }


def plan(*batches: dict[str, Any], length: int = 512) -> Plan:
    """Plan the longest batch."""
    made = history(*batches).plan(length)
    assert made is not None
    return made


@pytest.mark.parametrize(
    "batches",
    [
        [{"x": [8, 90]}, {"x": [8, 70]}],
        [{"x": [8, 90]}] * 5,
        [{"x": []}] * 5,
        [{}] * 5,
        [{"x": [8, 90]}] * 4 + [{"x": [3, 70]}],
    ],
    ids=["too few", "equal", "numbers", "nothing", "a last batch"],
)
def test_as_long_as_nothing_is_seen_to_vary_there_is_no_plan(batches: list[Any]) -> None:
    """A last batch with fewer samples tells nothing."""
    assert history(*batches).plan(512) is None


def test_what_varies_is_padded_and_what_does_not_is_not() -> None:
    """Tensors that always have the same length get the same, in whatever dimension."""
    made = plan(
        *({"ids": [8, n], "mask": [8, 1, n, n], "label": [8], "x": [8, 256]} for n in (90, 70, 80))
    )

    assert made.sizes == {"ids": {1: 512}, "mask": {2: 512, 3: 512}}
    assert (made.values, made.in_proportion) == ({}, False)


def test_a_tensor_that_is_always_shorter_by_the_same_stays_so() -> None:
    """Labels that are shifted; the larger one has the length that was asked for."""
    made = plan(*({"labels": [8, n - 1], "ids": [8, n]} for n in (90, 70, 80)))

    assert made.sizes == {"labels": {1: 511}, "ids": {1: 512}}
    assert not made.in_proportion


@pytest.mark.parametrize(
    ("other", "want", "in_proportion"),
    [((45, 35, 40), 256, False), ((30, 10, 25), 171, True)],
    ids=["half", "on its own"],
)
def test_other_dimensions_follow_in_proportion(
    other: tuple[int, ...], want: int, in_proportion: bool
) -> None:
    """Exactly if there is a ratio; otherwise that is said."""
    pairs = zip((90, 70, 80), other, strict=True)
    made = plan(*({"source": [8, n], "target": [8, m]} for n, m in pairs))

    assert made.sizes == {"source": {1: 512}, "target": {1: want}}
    assert made.in_proportion is in_proportion


def test_lengths_in_a_batch_are_known_by_their_values() -> None:
    """The largest of them is the length of the batch; other numbers are left alone."""
    made = plan(*({"ids": [8, n], "lengths": ([8], n), "classes": ([8], 5)} for n in (90, 70, 80)))

    assert made.values == {"lengths": 512}


def test_sequences_come_first_in_some_batches() -> None:
    """Then the first dimension is the one that varies."""
    assert plan(*({"ids": [n, 8]} for n in (90, 70, 80))).sizes == {"ids": {0: 512}}


def test_only_a_batch_with_the_usual_number_of_samples_is_padded() -> None:
    """The last one of an epoch would show less."""
    made = plan(*({"ids": [8, n]} for n in (90, 70, 80)))

    assert made.takes(see(ids=[8, 33], more=[7]))
    assert not made.takes(see(ids=[7, 33]))


def test_a_batch_that_is_longer_than_the_longest_is_noticed() -> None:
    """Whoever asked did not know of it; what is not padded does not count."""
    made = plan(*({"ids": [8, n], "mask": [8, n]} for n in (90, 70, 80)))

    assert made.longer_size(see(ids=[8, 512], other=[8, 900])) is None
    assert made.longer_size(see(ids=[8, 513], mask=[8, 600])) == 600


@pytest.mark.parametrize(
    ("batches", "why"),
    [
        ([{"x": [8, n]} for n in (90, 70, 600)], "a batch of 600 was seen, which is longer than"),
        ([{"x": [n, 900 // n]} for n in (9, 10, 20)], "the number of samples varies together"),
        ([{"x": [8]}, {"x": [8, 1]}, {"x": [8]}], "x does not always have the same dimensions"),
    ],
    ids=["longer", "batches of tokens", "other dimensions"],
)
def test_what_cannot_be_padded_is_told(batches: list[Any], why: str) -> None:
    """It is not guessed at."""
    with pytest.raises(NoPlanError, match=why):
        history(*batches).plan(512)


def test_a_history_does_not_grow_for_ever() -> None:
    """A job may have millions of batches."""
    made = history(*({"x": [8, 50]} for _ in range(300)), {"x": [8, 60]})

    assert made.plan(512) is None
