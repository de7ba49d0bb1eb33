"""Whose fault it is that there is no answer about a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from memgate.errors import JobFailedError, UnsupportedJobError
from memgate_worker.guard.guard import PROBLEMS_NAME
from memgate_worker.recorder.command import Recorded
from memgate_worker.recorder.failures import blame_guard
from memgate_worker.recorder.guarding import read_reports
from memgate_worker.recorder.listening import Heard


def _recorded(heard: Heard) -> Recorded:
    return Recorded(
        heard=heard,
        recordings={},
        pid=1,
        status=159,
        last_output="",
        seconds=1.0,
        is_protected=True,
        unseen="",
        sent={},
    )


@pytest.mark.parametrize(
    ("program", "want"), [("busybox", "a file: busybox. It"), ("", "a file: a program. It")]
)
def test_a_job_that_failed_after_we_ended_its_program_is_not_to_blame(
    tmp_path: Path, program: str, want: str
) -> None:
    """The guard's library reports it, once for each time; the message names it once."""
    line = json.dumps({"code": "PROGRAM_ENDED", "program": program, "command": ["sh"]})
    (tmp_path / PROBLEMS_NAME).write_text(f"{line}\n{line}\n")
    heard = Heard()

    read_reports(tmp_path, heard)
    error = blame_guard(JobFailedError("the command ended with exit status 159"), _recorded(heard))

    assert isinstance(error, UnsupportedJobError)
    assert want in error.message
    assert error.message.endswith("After that, the command ended with exit status 159")


def test_a_job_that_failed_by_itself_is_to_blame(tmp_path: Path) -> None:
    """Nothing was reported."""
    error, heard = JobFailedError("the job failed"), Heard()

    read_reports(tmp_path, heard)

    assert blame_guard(error, _recorded(heard)) is error
