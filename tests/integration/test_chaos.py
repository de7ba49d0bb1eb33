"""Everything fails at random under valid and hostile traffic: each question has its one answer.

``make chaos`` runs the long test.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.chaos import run_chaos


def test_chaos_loses_nothing_and_leaves_nothing(tmp_path: Path) -> None:
    """GIVEN kills, stops and a full store THEN all is answered, none is left."""
    chaos = run_chaos(tmp_path, num_jobs=15, seconds=12, seed=1)

    assert not chaos.wrong, chaos.line()
    assert chaos.faults, chaos.line()
    assert chaos.hostile.total() > 10, chaos.line()


@pytest.mark.slow
def test_rounds_of_chaos_agree(tmp_path: Path) -> None:
    """GIVEN 24 rounds of a minute THEN the same, and no question has two answers in two rounds."""
    answers: dict[str, Any] = {}
    for number in range(24):
        home = tmp_path / str(number)
        home.mkdir()
        chaos = run_chaos(home, num_jobs=100, seconds=60, seed=number)
        sys.stderr.write(f"\nround {number + 1}: {chaos.line()}")
        assert not chaos.wrong, chaos.line()
        assert chaos.round is not None
        for question, answer in chaos.round.answers.items():
            assert answers.setdefault(question, answer) == answer, question
