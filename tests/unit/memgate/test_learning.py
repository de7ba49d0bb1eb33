"""Outcomes of a simulator of drivers: what they teach, and what a liar cannot teach."""

from __future__ import annotations

import random

import pytest

from memgate.context import DOCUMENTED_CONTEXT
from memgate.learning import Lesson, Observation, _weigh, learn

MB = 10**6

#: contexts of drivers, as public reports have them and beyond
DRIVERS = (230, 310, 405, 520, 655, 840)


def _outcomes(context_mb: int, number: int, seed: int, keys: int = 3) -> list[Observation]:
    """Simulate jobs under a driver: NVML's figure has a jitter of about 20 MiB."""
    chance = random.Random(seed)
    return [
        Observation(
            key=f"key-{at % keys}",
            job=f"job-{at % 10}",
            context_bytes=context_mb * MB + round(chance.uniform(-10, 10) * 2**20),
        )
        for at in range(number)
    ]


def _width(lesson: Lesson) -> int:
    assert lesson.context is not None
    return lesson.context.high_bytes - lesson.context.low_bytes


@pytest.mark.parametrize("context_mb", DRIVERS)
def test_thirty_outcomes_narrow_the_context(context_mb: int) -> None:
    """To 100 MB at most, and 98.5 % of a thousand further jobs stay below it."""
    for seed in range(20):
        lesson = learn(_outcomes(context_mb, 30, seed))
        assert lesson.context is not None
        if context_mb * MB < DOCUMENTED_CONTEXT.high_bytes:
            assert _width(lesson) <= 100 * MB
        further = _outcomes(context_mb, 1000, seed + 1000)
        covered = sum(one.context_bytes <= lesson.context.high_bytes for one in further)
        assert covered >= 985


def test_more_than_is_documented_is_followed_and_less_is_not() -> None:
    """The bound rises without limit, and falls to the lowest that is documented."""
    wide = learn(_outcomes(1500, 30, 1)).context
    assert wide is not None
    assert wide.high_bytes > 1500 * MB
    narrow = learn(_outcomes(60, 30, 1)).context
    assert narrow is not None
    assert narrow.high_bytes == DOCUMENTED_CONTEXT.low_bytes


@pytest.mark.parametrize(
    "outcomes",
    [
        _outcomes(400, 29, 1),
        _outcomes(400, 60, 1, keys=2),
        [one._replace(job="the same") for one in _outcomes(400, 60, 1)],
    ],
    ids=["outcomes", "keys", "jobs"],
)
def test_too_few_teach_nothing(outcomes: list[Observation]) -> None:
    """Thirty outcomes, three callers, ten jobs."""
    assert learn(outcomes).context is None


@pytest.mark.parametrize("false_mb", [100, 1, 10**9, -300], ids=["low", "none", "absurd", "below"])
@pytest.mark.parametrize("known", [0, 30, 90])
def test_a_hundred_false_outcomes_move_no_bound_downwards(false_mb: int, known: int) -> None:
    """They are shown, drift is raised, and without them everything is as it was."""
    honest = _outcomes(400, known, 7)
    false = [
        Observation(key="liar", job=f"job-{at % 20}", context_bytes=false_mb * MB)
        for at in range(100)
    ]
    before = learn(honest)
    after = learn([*honest, *false])
    bound = (before.context or DOCUMENTED_CONTEXT).high_bytes
    assert (after.context or DOCUMENTED_CONTEXT).high_bytes >= bound
    assert after.is_drifting
    assert not before.is_drifting
    assert len(after.outliers) == 100
    assert learn(honest) == before


@pytest.mark.parametrize("numbers", [(10, 10, 10), (28, 1, 1), (100, 10, 10, 10), (5, 4, 3, 2)])
def test_no_key_counts_for_more_than_a_third(numbers: tuple[int, ...]) -> None:
    """However many outcomes it reports."""
    outcomes = [
        Observation(f"key-{key}", f"job-{at}", 400 * MB)
        for key, number in enumerate(numbers)
        for at in range(number)
    ]
    weights = _weigh(outcomes)
    counted = [weights[f"key-{key}"] * number for key, number in enumerate(numbers)]
    assert max(counted) <= sum(counted) / 3 * (1 + 1e-9)
