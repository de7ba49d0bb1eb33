"""Processes are killed while jobs run: whatever was accepted is answered, once.

``make faults`` runs the long test.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.integration.faults import BOUND_SECONDS, run_round
from tests.integration.whole import KINDS, Whole


def test_a_kill_of_each_kind_loses_nothing(tmp_path: Path) -> None:
    """GIVEN 30 jobs, WHEN one process of each kind is killed, THEN all have their one answer."""
    with Whole(tmp_path) as whole:
        result = run_round(whole, 30, KINDS, seed=1)

    assert not result.failures, result.line()
    assert result.num_accepted == 30
    assert all(result.kills.values()), result.line()


@pytest.mark.slow
def test_ten_rounds_of_two_hundred_jobs(tmp_path: Path) -> None:
    """GIVEN 200 jobs a round, WHEN 25 processes are killed in each, THEN the same, ten times."""
    answers: dict[str, Any] = {}
    differing: list[str] = []
    for number in range(10):
        with Whole(tmp_path / str(number)) as whole:
            kills = random.Random(number).sample(KINDS * 5, k=25)
            result = run_round(whole, 200, kills, seed=number)
        sys.stderr.write(f"\nround {number + 1}: {result.line()}")
        assert not result.failures, result.line()
        assert result.num_accepted == 200
        assert result.longest_stall_seconds < BOUND_SECONDS
        # The same question has the same answer in every round, whoever was killed over it.
        for question, answer in result.answers.items():
            if answers.setdefault(question, answer) != answer:
                differing.append(question)
    assert not differing
