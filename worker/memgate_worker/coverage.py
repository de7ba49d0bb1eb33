"""``MEMGATE_COVERAGE``: the share of jobs that must stay below their bound, as the operator wants.

Every program reads it as it starts, with the operator's GPUs: a service and its workers must agree.
"""

from __future__ import annotations

import os
from dataclasses import replace

from memgate.calibration import current_calibration, use_calibration
from memgate.errors import OperatorError
from memgate.margin_scores import SCORES
from memgate.margins import highest_coverage

VARIABLE = "MEMGATE_COVERAGE"

#: with less, half of what is admitted would die
_LOWEST = 0.5


class CoverageError(OperatorError):
    """``MEMGATE_COVERAGE`` is wrong."""

    code = "BAD_COVERAGE"


def load_coverage() -> None:
    """Have bounds hold for as many jobs as the operator wants.

    Raises:
        CoverageError: if that is not a share, or more than the measured runs can vouch for.
    """
    said = os.environ.get(VARIABLE, "").strip()
    if not said:
        return
    highest = highest_coverage(len(SCORES))
    try:
        coverage = float(said)
    except ValueError:
        coverage = float("nan")
    if not _LOWEST <= coverage <= highest:
        raise CoverageError(
            f"{VARIABLE} is {said!r}: it must be a number from {_LOWEST} to {highest:.4f}, which is"
            f" the most that the {len(SCORES)} measured jobs can vouch for; leave it out for 0.99"
        )
    use_calibration(replace(current_calibration(), coverage=coverage))
