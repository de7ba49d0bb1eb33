"""Every input that fuzzing has kept goes through its target; `make fuzz` looks for new ones."""

from __future__ import annotations

import pytest

from tests.fuzz.corpus import make_seeds, read_kept
from tests.fuzz.run import NAMES
from tests.fuzz.targets import TARGETS


def test_every_target_is_fuzzed() -> None:
    """One that `make fuzz` does not know would never be."""
    assert [*TARGETS] == [*NAMES]


@pytest.mark.parametrize("target", NAMES)
def test_what_was_kept_is_answered_or_refused(target: str) -> None:
    """Inputs that each reached something of their own, those that once broke it among them."""
    inputs = [*make_seeds(target), *read_kept(target).values()]
    assert len(inputs) > 20

    for data in inputs:
        TARGETS[target](data)
