"""Which batches are run where there are too many to run all."""

from __future__ import annotations

from memgate.batch_choice import choose_batches, measure_batch, name_batch
from memgate.jobspec import InputSpec


def batches_of(*lengths: int) -> list[InputSpec]:
    """Build the inputs of batches."""
    return [InputSpec(sequence_length=length) for length in lengths]


def test_all_are_run_if_they_are_few() -> None:
    """A limit that is not reached leaves nothing out."""
    assert choose_batches(batches_of(3, 1, 2), limit=3) == (0, 1, 2)


def test_the_first_and_the_new_maxima_are_run() -> None:
    """The first half of the limit, then what is larger than all before, with its neighbours."""
    lengths = [5, 4, 1, 1, 1, 9, 1, 1, 1, 1]

    assert choose_batches(batches_of(*lengths), limit=6) == (0, 1, 2, 4, 5, 6)


def test_the_largest_come_first_if_there_is_room_for_few() -> None:
    """Of many new maxima the last, which is the largest of all, is always run."""
    chosen = choose_batches(batches_of(*range(1, 101)), limit=8)

    assert len(chosen) == 8
    assert chosen[:4] == (0, 1, 2, 3)
    assert chosen[-1] == 99


def test_room_that_is_left_goes_to_what_precedes_the_largest() -> None:
    """Fragments that the largest meets are made just before it."""
    lengths = [1] * 20
    lengths[10] = 5

    assert choose_batches(batches_of(*lengths), limit=8) == (0, 1, 2, 3, 8, 9, 10, 11)


def test_without_new_maxima_the_next_ones_are_run() -> None:
    """If the largest is among the first, the sequence is run from its beginning."""
    assert choose_batches(batches_of(9, *[1] * 20), limit=4) == (0, 1, 2, 3)


def test_shapes_are_measured_and_named() -> None:
    """A batch has a length, a shape, or both."""
    image = InputSpec(shape=(3, 20, 10))

    assert measure_batch(image) == 600
    assert measure_batch(InputSpec(shape=(3, 20, 10), sequence_length=2)) == 1200
    assert name_batch(image) == "3x20x10"
    assert name_batch(InputSpec(sequence_length=7)) == "length 7"
    assert name_batch(InputSpec(shape=(3, 2), sequence_length=2000)) == "length 2,000 and 3x2"


def test_a_large_limit_takes_all_around() -> None:
    """One batch more than the limit: one is left out, and none is taken twice."""
    lengths = [1, 1, 1, 2, 1, 1, 1, 1, 1]

    chosen = choose_batches(batches_of(*lengths), limit=8)

    assert len(set(chosen)) == 8
    assert 3 in chosen
