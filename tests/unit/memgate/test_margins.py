"""Margins from measured deaths, and whether they hold for models that were left out."""

from __future__ import annotations

import pytest

from memgate.bound_figures import BoundedRun, binomial_interval, describe_bound, measure_bound
from memgate.margin_scores import SCORES
from memgate.margins import NARROWEST, POOLED, DeathScore, Family, Margin, find_margin
from memgate.workspaces import NO_WORKSPACES, WorkspaceRange

GPU = "NVIDIA GeForce RTX 3060"


def _scores(
    number: int, models: int, step: float, family: Family = Family.OTHER
) -> list[DeathScore]:
    return [DeathScore(GPU, family, f"model-{at % models}", at * step) for at in range(number)]


def test_the_margin_is_the_score_of_the_conformal_rank() -> None:
    """Of 99 scores, one more is at most the largest with 99 %, the 90th with 90 %."""
    scores = _scores(99, 3, 0.001)
    assert find_margin(scores, "another", Family.OTHER, 0.99).ratio == scores[98].excess
    assert find_margin(scores, "another", Family.OTHER, 0.9).ratio == scores[89].excess


@pytest.mark.parametrize(("number", "models", "is_own"), [(99, 5, True), (98, 5, False)])
def test_a_group_has_its_own_margin_from_99_scores_on(
    number: int, models: int, is_own: bool
) -> None:
    """With one score less, it is never narrower than that of all."""
    wide = [DeathScore("another", Family.CONVOLUTION, "wide", 0.2)] * 20
    margin = find_margin([*_scores(number, models, 0.0005), *wide], GPU, Family.OTHER, 0.99)
    assert (margin.group == f"other on {GPU}") is is_own
    assert (margin.ratio < 0.2) is is_own


def test_a_group_of_four_models_has_none() -> None:
    """They may be alike."""
    wide = [DeathScore("another", Family.CONVOLUTION, "wide", 0.2)] * 20
    assert find_margin([*_scores(200, 4, 0.0001), *wide], GPU, Family.OTHER, 0.99).ratio == 0.2


def test_a_small_group_with_worse_scores_is_wider() -> None:
    """It is shrunk towards all, by how few scores it has."""
    scores = [*_scores(300, 9, 0.00001), *([DeathScore(GPU, Family.CONVOLUTION, "odd", 0.1)] * 2)]
    pooled = find_margin(scores, "another", Family.OTHER, 0.99).ratio
    margin = find_margin(scores, GPU, Family.CONVOLUTION, 0.99)
    assert pooled < margin.ratio < 0.1
    assert "shrunk" in margin.group


def test_no_margin_is_narrower_than_the_narrowest() -> None:
    """The runs that are known do not show by how much engines change."""
    assert find_margin(_scores(99, 9, 0.0), GPU, Family.OTHER, 0.99).ratio == NARROWEST


def test_what_memgate_brings_is_pooled() -> None:
    """No group of it has 99 scores."""
    assert len(SCORES) >= 99
    assert find_margin(SCORES, GPU, Family.CONVOLUTION, 0.99).group == POOLED


@pytest.mark.parametrize(
    ("successes", "trials", "want"),
    [(10, 10, (0.6915, 1.0)), (0, 10, (0.0, 0.3085)), (207, 210, (0.9588, 0.9970))],
)
def test_intervals_are_exact(successes: int, trials: int, want: tuple[float, float]) -> None:
    """As tables of Clopper and Pearson have them."""
    assert binomial_interval(successes, trials) == pytest.approx(want, abs=1e-4)


def _run(model: str, died_at: tuple[int, ...], more: int = 0) -> BoundedRun:
    return BoundedRun(
        gpu=GPU,
        model=model,
        family=Family.OTHER,
        required_bytes=1000,
        workspaces=WorkspaceRange(0, more) if more else NO_WORKSPACES,
        library_bytes=34,
        measured_bytes=1000,
        died_at=died_at,
        lived_at=(),
    )


def test_a_model_is_judged_by_the_others() -> None:
    """The only one that dies above its estimate is not covered by its own score."""
    runs = [_run(f"model-{at}", (900, 950)) for at in range(99)]
    said = measure_bound([*runs, _run("odd", (900, 1200))], 0.99)
    assert (said["by_job"]["covered"], said["by_job"]["of"]) == (99, 100)
    assert (said["by_death"]["covered"], said["by_death"]["of"]) == (199, 200)
    covered = measure_bound([*runs, _run("odd", (900, 1200), more=200)], 0.99)
    assert covered["by_job"]["covered"] == 100
    assert covered["above_measured_median"] == pytest.approx(1.013 * 1.0 + 0.034 - 1)


def test_without_scores_the_margin_is_the_narrowest() -> None:
    """Nothing was measured that could widen it."""
    assert find_margin([], GPU, Family.OTHER, 0.99) == Margin(NARROWEST, POOLED, 0, 0)


def test_the_bound_is_described_by_what_is_known() -> None:
    """GIVEN a run that died and one that lived THEN there is a line for each figure; else none."""
    died = BoundedRun(GPU, "a", Family.OTHER, 1000, NO_WORKSPACES, 0, None, (900,), ())
    lived = BoundedRun(GPU, "b", Family.OTHER, 1000, NO_WORKSPACES, 0, 1000, (), (1100,))

    lines = describe_bound(measure_bound([died, lived], 0.99)).splitlines()

    assert lines[1].startswith("  1 of 1 jobs that died lie below it: 100.0%")
    assert lines[2].startswith("  1 of 1 deaths lie below it")
    assert lines[-1].startswith("  above what was measured of runs that lived: +")
    assert len(describe_bound(measure_bound([], 0.99)).splitlines()) == 2
