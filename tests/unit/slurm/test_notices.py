"""What the owner of a job is told about it: by mail, and by ``memgate slurm why``."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from memgate_service.admission.core.rules import Subject
from memgate_service.admission.slurm import why
from memgate_service.admission.slurm.commands import SlurmError, SlurmJob
from memgate_service.admission.slurm.notices import Notices
from memgate_service.admission.slurm.records import AdminComment, Record
from memgate_service.admission.slurm.why import describe_job, read_why

REJECTED = Record(
    decision="reject",
    gpu="t4",
    held=True,
    why="does not fit on t4: needs 20 GiB",
    page="/ui/jobs/a",
)


def _job(user: str = "ada") -> SlurmJob:
    comment = AdminComment(record=REJECTED, others={})
    subject = Subject(user=user)
    return SlurmJob(
        job_id=7, submitted_at=0, is_held=True, comment=comment, subject=subject, job_name="train"
    )


def _mail_program(home: Path, ending: str = "") -> str:
    program = home / "mail"
    program.write_text(
        f'#!/bin/sh\nprintf "%s\\n" "$@" > {home}/sent; cat >> {home}/sent\n{ending}'
    )
    program.chmod(0o755)
    return str(program)


def test_mail_is_sent_as_slurm_sends_it(tmp_path: Path) -> None:
    """``MailProg -s SUBJECT USER``, with the reason, what was done, and where to look."""
    said: list[str] = []
    Notices(_mail_program(tmp_path), said.append).send(_job(), REJECTED, "canceled")

    assert said == []
    assert (tmp_path / "sent").read_text().splitlines() == [
        "-s",
        "Slurm Job_id=7 Name=train canceled by memgate",
        "ada",
        "memgate: job 7 does not fit on t4: needs 20 GiB",
        "It was canceled before it started.",
        "/ui/jobs/a",
    ]


def test_a_mail_program_that_fails_stops_nothing(tmp_path: Path) -> None:
    """It is logged; without a program, or a user's name, nothing is sent."""
    said: list[str] = []
    failing = _mail_program(tmp_path, "echo full >&2; exit 3")
    for program in (failing, str(tmp_path / "nowhere")):
        Notices(program, said.append).send(_job(), REJECTED, "held")
    assert said[0] == "job 7: ada could not be told: full"
    assert "No such file" in said[1]
    (tmp_path / "sent").unlink()
    Notices("", said.append).send(_job(), REJECTED, "noted")
    Notices(failing, said.append).send(_job(user="-oProgram=x"), REJECTED, "noted")
    assert not (tmp_path / "sent").exists()


_TIMER = int(time.mktime((2026, 11, 18, 15, 4, 5, 0, 0, -1)))
_PENDING = Record(decision="pending", gpu="t4", held=True, timer=_TIMER, question="{}")


@pytest.mark.parametrize(
    ("state", "record", "want"),
    [
        ("CANCELLED", REJECTED, "canceled by memgate: does not fit on t4: needs 20 GiB"),
        ("PENDING", REJECTED, "held by memgate: does not fit on t4: needs 20 GiB"),
        ("PENDING", _PENDING, "held by memgate until 15:04:05 at the latest: no answer yet"),
        ("CANCELLED", _PENDING, "canceled, and not by memgate, which had no answer yet"),
        ("COMPLETED", _PENDING, "let in by memgate: its timer ended before there was an answer"),
        (
            "PENDING",
            Record(decision="rehearsal", held=True),
            "held by memgate: it is run once without a GPU",
        ),
        ("RUNNING", Record(decision="admit", gpu="t4"), "let in by memgate: it fits on t4"),
        ("RUNNING", Record(decision="unknown_gpu"), "let in by memgate: unknown gpu"),
        (
            "RUNNING",
            Record(decision="reject", why="does not fit"),
            "let in by memgate: does not fit",
        ),
        (
            "RUNNING",
            Record(decision="reject", gpu="t4", needs=20 << 30, capacity=14 << 30, mode="warn"),
            "let in by memgate, which does not enforce anything for it (warn): it does not fit on"
            " t4: needs 20.00 GiB, t4 has 14.00 GiB",
        ),
    ],
)
def test_an_owner_reads_what_was_done_with_a_job(state: str, record: Record, want: str) -> None:
    """In one line, with the page if there is one."""
    page = "; see /ui/jobs/a" if record.page else ""

    assert describe_job(7, state, record) == f"job 7: {want}{page}"


def test_slurm_is_asked_and_then_accounting(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Slurm 22.05 writes it; it forgets jobs after a while."""
    comment = AdminComment(record=REJECTED, others={}).text()
    shown = f"JobId=7 JobName=x\n   JobState=CANCELLED Reason=None\n   AdminComment={comment} \n"
    forgotten = False

    def slurm(command: list[str]) -> str:
        if command[0] == "scontrol" and forgotten:
            raise SlurmError("slurm_load_jobs error: Invalid job id specified")
        if command[0] == "scontrol":
            return shown
        return f"CANCELLED by 0\x1f{comment}\n"

    monkeypatch.setattr(why, "run", slurm)
    want = "job 7: canceled by memgate: does not fit on t4: needs 20 GiB; see /ui/jobs/a"
    assert read_why(7) == want
    forgotten = True
    assert read_why(7) == want
    comment = ""
    with pytest.raises(SlurmError, match="job 7: memgate has no record of it"):
        read_why(7)
