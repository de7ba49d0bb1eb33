"""Mistakes: one form, one sentence, at every door."""

from __future__ import annotations

import pickle

from memgate.contract import Failure
from memgate.errors import InputError
from memgate.mistakes import Mistake, describe, show_value, unknown_name

WRONG = Mistake(field="a.b", value="3", rule="it must be at most 2", next_step="write 2")


def test_a_mistake_is_a_sentence() -> None:
    """The field, the value, the rule, the next step; what is not known is left out."""
    assert WRONG.sentence == "a.b is 3: it must be at most 2; write 2"
    assert Mistake(field="", value="7", rule="no").sentence == "the whole is 7: no"
    assert Mistake(field="x", value="", rule="no").sentence == "x: no"


def test_several_mistakes_are_numbered() -> None:
    """All are named, up to a number that a person reads."""
    assert describe([WRONG]) == WRONG.sentence
    two = describe([WRONG, WRONG])
    assert two == f"2 mistakes: (1) {WRONG.sentence} (2) {WRONG.sentence}"
    assert describe([WRONG] * 9).endswith(f"(5) {WRONG.sentence} and 4 more")


def test_values_are_written_as_in_json() -> None:
    """People write null and true, and no value fills a screen."""
    assert (show_value(None), show_value(True), show_value("x")) == ("null", "true", "'x'")
    assert len(show_value("x" * 1000)) == 100


def test_an_unknown_name_is_answered_with_a_near_one_or_with_all() -> None:
    """Whichever helps."""
    near = unknown_name("engine", "fantom", ["phantom", "profile"], rule="no such engine")
    far = unknown_name("engine", "magic", ["phantom", "profile"], rule="no such engine")

    assert (near.near, near.next_step) == (("phantom",), "did you mean 'phantom'?")
    assert (far.near, far.next_step) == ((), "there are: phantom, profile")


def test_an_error_keeps_its_mistakes() -> None:
    """Through a queue, and through a store."""
    error = InputError.from_mistakes(WRONG, what="job spec")

    again = pickle.loads(pickle.dumps(error))
    stored = Failure.model_validate_json(Failure.of(error).model_dump_json())

    assert error.message == f"job spec: {WRONG.sentence}"
    assert (again.message, again.mistakes) == (error.message, (WRONG,))
    assert (stored.message, stored.mistakes) == (error.message, (WRONG,))
