"""Predictions and measured runs -> the figures of the xMem paper, by its equations.

``error`` is relative to the measured peak. ``C1`` (first validation) says that a job was predicted
to run out of memory exactly if it did. ``C2`` (second validation) says that, too, it lived in its
own estimate, or was right to be rejected. ``P`` is the share for which ``C`` is false, the memory
conserved is what the estimate leaves of the card, the whole card of a job rightly rejected and
minus the card of a wrong answer, and the score is ``0.7 P + 0.3 error``: lower is better.

Where nobody tried an estimate, capped runs of the same job stand in: it lives if the job lived at
that cap or a lower one, dies if it died at that cap or a higher one, and is undecided between.
Undecided rows, and those on which an estimator decides nothing, count in no share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil
from statistics import fmean, median

from memgate.accuracy import MeasuredRun, Prediction
from memgate.decision import Decision

FAILURE_WEIGHT = 0.7
ERROR_WEIGHT = 0.3

#: beyond it, a figure is in the bad half of its axis of the four quadrants
QUADRANT = 0.2

#: caps were set in whole percents of the card: a run this near to an estimate is its own
_CAP_STEP = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One estimate for one measured run, and what came of it."""

    run: MeasuredRun
    estimate_bytes: float
    #: relative to the peak of the first run; None: it ran out of memory
    error: float | None
    #: relative to the peak of the run in its own estimate, where there was one that lived
    second_error: float | None
    #: the first validation; None: the estimator did not decide
    first_right: bool | None
    #: the second; None: that, or nothing says whether the job lives in its own estimate
    second_right: bool | None
    seconds: float | None

    @property
    def saved_bytes(self) -> float | None:
        """The memory conserved; None where the second validation is not decided."""
        if self.second_right is None:
            return None
        if not self.second_right:
            return -self.run.total_bytes
        if self.run.ran_out:
            return self.run.total_bytes
        return self.run.total_bytes - self.estimate_bytes


def try_estimate(run: MeasuredRun, said: Prediction, *, by_equation: bool = False) -> Trial | None:
    """Return what came of an estimate; None if there is none.

    With ``by_equation`` a job is predicted to run out of memory if its estimate exceeds the card,
    whatever the estimator itself concluded.
    """
    if said.bytes is None:
        return None
    predicted = said.bytes > run.total_bytes if by_equation else _predicted_death(run, said)
    first = None if predicted is None else predicted == run.ran_out
    peak_bytes = _find_second_peak(run, said.bytes)
    return Trial(
        run=run,
        estimate_bytes=said.bytes,
        error=None if run.ran_out else _relative(said.bytes, run.measured_bytes),
        second_error=None if peak_bytes is None else _relative(said.bytes, peak_bytes),
        first_right=first,
        second_right=_second(run, said, first),
        seconds=said.seconds,
    )


def try_estimates(
    runs: Sequence[MeasuredRun], said: Sequence[Prediction], *, by_equation: bool = False
) -> list[Trial]:
    """Return what came of all estimates; rows without one are left out."""
    pairs = zip(runs, said, strict=True)
    trials = (try_estimate(run, one, by_equation=by_equation) for run, one in pairs)
    return [trial for trial in trials if trial is not None]


def _predicted_death(run: MeasuredRun, said: Prediction) -> bool | None:
    if said.decision is not None:
        return None if said.decision is Decision.UNCERTAIN else said.decision is Decision.REJECT
    if said.runs_out is not None:
        return said.runs_out
    return said.bytes is not None and said.bytes > run.total_bytes


def _second(run: MeasuredRun, said: Prediction, first: bool | None) -> bool | None:
    if first is None or not first or run.ran_out:
        return first
    died = said.second_died
    if died is None and said.bytes is not None:
        died = dies_within(run, said.bytes)
    return None if died is None else not died


def dies_within(run: MeasuredRun, estimate_bytes: float) -> bool | None:
    """Say by the capped runs whether a job dies in so much memory; None: they do not decide it."""
    lived = any(not cap.died and cap.cap_bytes <= estimate_bytes for cap in run.capped)
    died = any(cap.died and cap.cap_bytes >= estimate_bytes for cap in run.capped)
    return None if lived == died else died


def _find_second_peak(run: MeasuredRun, estimate_bytes: float) -> int | None:
    """Return the peak of the run in an estimate; None: there was none, or it died."""
    own = [cap for cap in run.capped if abs(cap.cap_bytes - estimate_bytes) <= _own_step(run)]
    nearest = min(own, key=lambda cap: abs(cap.cap_bytes - estimate_bytes), default=None)
    return None if nearest is None else nearest.peak_bytes


def _own_step(run: MeasuredRun) -> float:
    return _CAP_STEP * run.total_bytes


def _relative(estimate_bytes: float, measured_bytes: int) -> float:
    return abs(estimate_bytes - measured_bytes) / measured_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The paper's figures over some trials; None where no trial says anything about one."""

    #: estimates
    trials: int
    #: of them with an error: the job did not run out of memory
    rows: int
    median_error: float | None
    second_median_error: float | None
    #: decided by the estimator, and of them wrong
    first_decided: int
    first_failure: float | None
    #: decided by a run in the own estimate or one that stands in, and of them wrong
    second_decided: int
    second_failure: float | None
    saved_bytes: float | None
    seconds: float | None

    @property
    def first_score(self) -> float | None:
        """By the first validation."""
        return _score(self.first_failure, self.median_error)

    @property
    def second_score(self) -> float | None:
        """By the second; its error is that of the first where no run has measured another."""
        error = self.second_median_error
        return _score(self.second_failure, self.median_error if error is None else error)

    @property
    def quadrant(self) -> str | None:
        """The quadrant of the plot of failure probability and median error, as the paper says."""
        error = self.median_error if self.second_median_error is None else self.second_median_error
        if self.second_failure is None or error is None:
            return None
        bad_error, bad_failure = error >= QUADRANT, self.second_failure >= QUADRANT
        if bad_error:
            return "worst" if bad_failure else "overestimation"
        return "underestimation" if bad_failure else "optimal"


def _score(failure: float | None, error: float | None) -> float | None:
    if failure is None or error is None:
        return None
    return FAILURE_WEIGHT * failure + ERROR_WEIGHT * error


def score_trials(trials: Sequence[Trial]) -> Score:
    """Return the paper's figures over some trials."""
    errors = [trial.error for trial in trials if trial.error is not None]
    second = [trial.second_error for trial in trials if trial.second_error is not None]
    first_right = [trial.first_right for trial in trials if trial.first_right is not None]
    second_right = [trial.second_right for trial in trials if trial.second_right is not None]
    saved = [trial.saved_bytes for trial in trials if trial.saved_bytes is not None]
    seconds = [trial.seconds for trial in trials if trial.seconds is not None]
    return Score(
        trials=len(trials),
        rows=len(errors),
        median_error=median(errors) if errors else None,
        second_median_error=median(second) if second else None,
        first_decided=len(first_right),
        first_failure=_share_wrong(first_right),
        second_decided=len(second_right),
        second_failure=_share_wrong(second_right),
        saved_bytes=fmean(saved) if saved else None,
        seconds=fmean(seconds) if seconds else None,
    )


def _share_wrong(right: Sequence[bool]) -> float | None:
    return (len(right) - sum(right)) / len(right) if right else None


def score_groups(trials: Iterable[Trial], key: Callable[[MeasuredRun], str]) -> dict[str, Score]:
    """Return the figures of each group, by its name in order."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(key(trial.run), []).append(trial)
    return {name: score_trials(groups[name]) for name in sorted(groups)}


def list_scores(scores: Iterable[Score], *, second: bool) -> list[float]:
    """Return performance scores in order: the steps of their distribution."""
    values = (score.second_score if second else score.first_score for score in scores)
    return sorted(value for value in values if value is not None)


def find_percentile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest of ordered values that so large a share does not exceed."""
    return values[ceil(share * len(values)) - 1] if values else None
