"""Slurm's commands and the record in AdminComment: read as every version writes them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from memgate_service.admission.core.rules import Subject
from memgate_service.admission.slurm.commands import (
    SlurmCommands,
    SlurmError,
    SlurmJob,
    read_queue,
    run,
)
from memgate_service.admission.slurm.records import AdminComment, Record, read_comment


def _comment(**others: Any) -> AdminComment:
    return AdminComment(record=Record(), others=others)


def _queue(**job: Any) -> str:
    usual = {"job_id": 7, "job_state": "PENDING", "priority": 0, "submit_time": 5}
    return json.dumps({"jobs": [usual | {"admin_comment": '{"memgate": {}}'} | job]})


@pytest.mark.parametrize(
    "job",
    [
        {},
        {
            "job_state": ["PENDING"],
            "priority": {"set": True, "infinite": False, "number": 0},
            "submit_time": {"set": True, "infinite": False, "number": 5},
        },
    ],
    ids=["22.05", "24.05"],
)
def test_the_queue_is_read_as_old_and_new_versions_write_it(job: dict[str, Any]) -> None:
    """Numbers became objects, states became lists."""
    assert list(read_queue(_queue(**job))) == [
        SlurmJob(
            job_id=7,
            submitted_at=5.0,
            is_held=True,
            comment=_comment(),
            subject=Subject(kind="job", group=["0"], partition=[]),
        )
    ]


@pytest.mark.parametrize(
    ("reason", "want"), [("JobHeldUser", False), ("JobHeldAdmin", True), ("None", False)]
)
def test_who_holds_a_job_is_read(reason: str, want: bool) -> None:
    """What a plugin holds, Slurm takes for the owner's hold."""
    (job,) = read_queue(_queue(state_reason=reason))

    assert job.is_admin_held is want


@pytest.mark.parametrize("comment", ["", "words", "[1]", '{"memgate": 1}', '{"other": {}}', None])
def test_others_comments_are_none_of_ours(comment: str | None) -> None:
    """Nor are jobs in states of which nothing is known."""
    assert list(read_queue(_queue(admin_comment=comment))) == []
    assert list(read_queue(_queue(job_state="SPECIAL"))) == []


@pytest.mark.parametrize(
    ("job", "want"),
    [
        ({}, (False, False)),
        ({"job_state": "RUNNING", "nodes": "n1"}, (False, True)),
        ({"job_state": ["CANCELLED", "COMPLETING"]}, (True, False)),
        ({"job_state": "FAILED", "nodes": "n1"}, (True, True)),
    ],
)
def test_what_has_ended_is_told_from_what_never_began(
    job: dict[str, Any], want: tuple[bool, bool]
) -> None:
    """Its owner may have canceled it before it had a node."""
    (found,) = read_queue(_queue(**job))

    assert (found.has_ended, found.had_node) == want


@pytest.mark.parametrize("text", ["", "{}", '{"jobs": 1}', '{"jobs": [1]}', '{"jobs": [{}, 1]}'])
def test_what_is_no_queue_is_said_to_be_none(text: str) -> None:
    """One error, in words."""
    with pytest.raises(SlurmError, match="squeue --json printed something unexpected"):
        list(read_queue(text))


def test_a_note_is_one_argument_and_keeps_others_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No shell sees it, and whoever else writes into AdminComment finds it again."""
    ran: list[Any] = []
    monkeypatch.setattr("memgate_service.admission.slurm.commands.run", ran.append)
    job = SlurmJob(job_id=7, submitted_at=0, is_held=True, comment=_comment(site=1))

    SlurmCommands().note(job, Record(why="'; $(reboot) \n JobId=1"))

    [[*words, comment]] = ran
    assert words == ["scontrol", "update", "JobId=7"]
    assert json.loads(comment.removeprefix("AdminComment=")) == {
        "site": 1,
        "memgate": {"why": "'; $(reboot) \n JobId=1"},
    }
    assert "\n" not in comment


@pytest.mark.parametrize(
    "part",
    [
        {"het_job_id": 6, "het_job_offset": 1},
        {
            "het_job_id": {"set": True, "infinite": False, "number": 6},
            "het_job_offset": {"set": True, "infinite": False, "number": 1},
        },
    ],
    ids=["22.05", "24.05"],
)
def test_a_part_of_a_job_is_released_alone(
    monkeypatch: pytest.MonkeyPatch, part: dict[str, Any]
) -> None:
    """Slurm takes the id of the first part for all; and it cancels all or none."""
    ran: list[Any] = []
    monkeypatch.setattr("memgate_service.admission.slurm.commands.run", ran.append)
    (job,) = read_queue(_queue(**part))

    SlurmCommands().release(job)
    SlurmCommands().note(job, Record())
    SlurmCommands().cancel(job)

    assert [words[:3] for words in ran] == [
        ["scontrol", "release", "6+1"],
        ["scontrol", "update", "JobId=6+1"],
        ["scancel", "6"],
    ]


def test_a_command_that_fails_is_one_sentence() -> None:
    """With what it said, or that it is not there."""
    with pytest.raises(SlurmError, match="sh failed: no such job"):
        run(["sh", "-c", "echo no such job >&2; exit 1"])
    with pytest.raises(SlurmError, match="no-such-program cannot be run: No such file"):
        run(["no-such-program"])


def test_a_record_is_read_as_it_was_written() -> None:
    """What other programs have noted stays, in its place."""
    record = Record(decision="reject", gpu="t4", needs=2, capacity=1, id="0" * 32, held=True)
    text = AdminComment(record=record, others={"site": {"a": [1]}}).text()

    assert json.loads(text)["site"] == {"a": [1]}
    assert read_comment(text) == AdminComment(record=record, others={"site": {"a": [1]}})


def test_a_record_of_an_older_plugin_is_read() -> None:
    """It has a peak, which nobody reads any more, and no page."""
    said = {"decision": "admit", "peak": 1, "needs": 2, "capacity": 3, "gpu": "t4", "id": "0" * 32}
    comment = read_comment(json.dumps({"memgate": said}))

    assert comment is not None
    assert (comment.record.needs, comment.record.page) == (2, "")
