"""Runs a job that does nothing, to see whether one can be kept apart here."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from memgate_worker.sandbox.cell import Cell
from memgate_worker.sandbox.confine import Jobs


def _do_nothing() -> NoReturn:
    os._exit(0)


def main(plan: str) -> None:
    """End with status 0 if it ran; otherwise, the last line of standard error says why not."""
    try:
        job = Jobs(Cell.from_json(plan)).fork(_do_nothing)
    except OSError as error:
        sys.exit(error.strerror)
    _, status = os.waitpid(job, 0)
    sys.exit(os.waitstatus_to_exitcode(status))
