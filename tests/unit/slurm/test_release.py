"""Held jobs: what becomes of them, and in which order that is done."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from memgate import Client
from memgate.client.conversation import ServedEstimate
from memgate.client.errors import (
    AnswerError,
    ClientError,
    NotDoneError,
    RefusedError,
    UnreachableError,
)
from memgate.errors import Fault
from memgate_service.admission.slurm.controller import (
    SlurmController,
    SlurmError,
    SlurmJob,
    read_queue,
    run,
)
from memgate_service.admission.slurm.release import (
    ReleaseAction,
    ReleasePolicy,
    Releaser,
    judge_held,
)
from tests.unit.service.test_client import ESTIMATE, JOB, JOB_ID, Answer, Server

QUESTION = json.dumps({"job": JOB, "gpu": {"name": "t4", "count": 1}})
REJECT = ESTIMATE | {
    "decision": "reject",
    "reasons": [{"code": "DOES_NOT_FIT", "message": "needs 20 GiB, t4 has 14 GiB"}],
    "fits_on": ["a30", "l4", "a100-40", "a100-80"],
    "largest_batch_size": 12,
}


def _estimate(decision: str) -> ServedEstimate:
    return ServedEstimate(**(REJECT | {"decision": decision, "id": JOB_ID}))


ANSWERS: list[tuple[ServedEstimate | ClientError, float, ReleaseAction, str]] = [
    (_estimate("admit"), 0, ReleaseAction.RELEASE, "admit"),
    (_estimate("reject"), 0, ReleaseAction.CANCEL, "reject"),
    (_estimate("uncertain"), 0, ReleaseAction.HOLD, "uncertain"),
    (NotDoneError(JOB_ID, 0), 0, ReleaseAction.WAIT, "unanswered"),
    (NotDoneError(JOB_ID, 0), 601, ReleaseAction.RELEASE, "unanswered"),
    (UnreachableError("away"), 599, ReleaseAction.WAIT, "unanswered"),
]


@pytest.mark.parametrize(
    ("answer", "waited", "action", "decision"), ANSWERS, ids=[str(n) for n in range(len(ANSWERS))]
)
def test_each_answer_has_a_consequence(
    answer: ServedEstimate | ClientError, waited: float, action: ReleaseAction, decision: str
) -> None:
    """What the operator chose; only patience that is over makes an answer of none."""
    policy = ReleasePolicy(uncertain=ReleaseAction.HOLD, unanswered=ReleaseAction.RELEASE)

    verdict = judge_held(answer, "t4", policy, waited)

    assert (verdict.action, verdict.record["decision"]) == (action, decision)
    assert verdict.record["gpu"] == "t4"


def _failed(fault: str, *, code: str = "ANY_CODE", status: int | None = 422) -> AnswerError:
    kind = RefusedError if fault == "caller" else AnswerError
    return kind("because", code=code, fault=Fault(fault), status=status)


#: an error, what becomes of the job at once, and once patience has run out; the code of an error
#: never decides. ``test_lua`` holds the gate to the same table.
FAULTS: list[tuple[AnswerError, ReleaseAction, ReleaseAction, str]] = [
    (_failed("caller"), ReleaseAction.CANCEL, ReleaseAction.CANCEL, "bad_spec"),
    (_failed("caller", status=None), ReleaseAction.CANCEL, ReleaseAction.CANCEL, "bad_spec"),
    (_failed("caller", status=413), ReleaseAction.CANCEL, ReleaseAction.CANCEL, "bad_spec"),
    (_failed("caller", status=401), ReleaseAction.WAIT, ReleaseAction.HOLD, "unanswered"),
    (
        _failed("caller", code="UNKNOWN_GPU"),
        ReleaseAction.WAIT,
        ReleaseAction.HOLD,
        "unanswered",
    ),
    (_failed("job"), ReleaseAction.RELEASE, ReleaseAction.RELEASE, "uncertain"),
    (_failed("unsupported"), ReleaseAction.RELEASE, ReleaseAction.RELEASE, "uncertain"),
    (_failed("operator", status=503), ReleaseAction.WAIT, ReleaseAction.HOLD, "unanswered"),
    (_failed("passing", status=503), ReleaseAction.WAIT, ReleaseAction.HOLD, "unanswered"),
]


@pytest.mark.parametrize(
    ("error", "at_once", "later", "decision"),
    FAULTS,
    ids=[f"{error.fault}-{error.status}-{error.code}" for error, *_ in FAULTS],
)
def test_the_fault_alone_decides(
    error: AnswerError, at_once: ReleaseAction, later: ReleaseAction, decision: str
) -> None:
    """Only an author's own mistake cancels; a wrong key or GPU table is the operator's."""
    policy = ReleasePolicy(unanswered=ReleaseAction.HOLD)

    verdicts = [judge_held(error, "t4", policy, seconds) for seconds in (0, 601)]

    assert [verdict.action for verdict in verdicts] == [at_once, later]
    assert verdicts[0].record == {"gpu": "t4", "decision": decision, "why": "because"}


@pytest.mark.parametrize("fault", ["job", "unsupported", "operator", "passing"])
def test_no_policy_cancels_a_job_for_a_fault_that_is_not_its_authors(fault: str) -> None:
    """An operator who cancels what may not fit has it held: a person decides."""
    policy = ReleasePolicy(uncertain=ReleaseAction.CANCEL)

    actions = {judge_held(_failed(fault), "t4", policy, seconds).action for seconds in (0, 601)}

    assert ReleaseAction.CANCEL not in actions


def test_no_policy_cancels_for_want_of_an_answer() -> None:
    """That memgate is down is never the job's fault."""
    with pytest.raises(ValueError, match="not the job's fault"):
        ReleasePolicy(unanswered=ReleaseAction.CANCEL)


def test_a_refusal_says_what_would_do() -> None:
    """In the record, where the owner finds it: a batch, and GPUs."""
    record = judge_held(_estimate("reject"), "t4", ReleasePolicy(), 0).record

    said = _estimate("reject").explanation
    assert record["why"] == said.text
    assert said.helps == [
        "batch size 12 fits, the largest that does",
        "as it is, it fits on a30, l4, a100-40",
    ]
    assert (record["needs"], "peak" in record) == (1, False)


class Twin(SlurmController):
    """Slurm in memory: remembers what was done to it."""

    def __init__(self, *jobs: SlurmJob, gone: bool = False) -> None:
        self._jobs = list(jobs)
        self._gone = gone
        self.done: list[tuple[str, int]] = []
        self.noted: dict[int, Any] = {}

    def jobs(self) -> list[SlurmJob]:
        """Return them."""
        return self._jobs

    def release(self, job: SlurmJob) -> None:
        """Remember."""
        self.done.append(("release", job.job_id))
        if self._gone:
            raise SlurmError("scontrol failed: Invalid job id specified")

    def cancel(self, job: SlurmJob) -> None:
        """Remember."""
        self.done.append(("cancel", job.job_id))

    def note(self, job: SlurmJob, record: dict[str, Any]) -> None:
        """Remember."""
        self.done.append(("note", job.job_id))
        self.noted[job.job_id] = record


def _job(number: int = 1, *, is_held: bool = True, **record: Any) -> SlurmJob:
    said = {"decision": "pending", "held": True, "gpu": "t4", "question": QUESTION} | record
    return SlurmJob(job_id=number, submitted_at=0, is_held=is_held, comment={"memgate": said})


def _look(twin: Twin, *answers: Answer) -> tuple[int, list[str]]:
    told: list[str] = []
    server = Server(*answers)
    transport = httpx2.MockTransport(server)
    with Client("http://memgate", transport=transport, num_tries=1) as client:
        num_waiting = Releaser(
            client, twin, ReleasePolicy(), told.append, clock=lambda: 10.0
        ).look()
    assert server.is_done
    return num_waiting, told


def test_one_question_is_asked_once_for_all_its_jobs() -> None:
    """And each is released before its record says so: stopped between, nothing is lost."""
    twin = Twin(_job(1), _job(2))

    assert _look(twin, (200, ESTIMATE))[0] == 0

    assert twin.done == [("release", 1), ("note", 1), ("release", 2), ("note", 2)]
    assert twin.noted[1] == {
        "decision": "admit",
        "needs": 1,
        "capacity": 1,
        "gpu": "t4",
        "id": JOB_ID,
    }


def test_a_job_that_is_canceled_is_told_why_first() -> None:
    """While it can still be written to; and stays guarded until it is gone."""
    twin = Twin(_job())

    _look(twin, (200, REJECT))

    assert twin.done == [("note", 1), ("cancel", 1)]
    assert twin.noted[1]["held"] is True


def test_a_missing_runtime_touches_no_job() -> None:
    """Through the client: the problem document's fault decides; the operator reads why."""
    problem = {
        "type": "/docs/errors#runtime_missing",
        "title": "Service Unavailable",
        "status": 503,
        "code": "RUNTIME_MISSING",
        "detail": "runtime 'torch-2.6' is not installed",
        "fault": "operator",
        "job": JOB_ID,
    }
    twin = Twin(_job())

    assert _look(twin, (503, problem)) == (1, ["no answer: runtime 'torch-2.6' is not installed"])

    assert twin.done == []


def test_what_an_administrator_has_released_is_not_canceled() -> None:
    """Only its record is brought up to date."""
    twin = Twin(_job(is_held=False))

    _look(twin, (200, REJECT))

    assert twin.done == [("note", 1)]
    assert "held" not in twin.noted[1]


def test_what_waits_for_a_person_is_left_alone() -> None:
    """Nobody is asked; once it is released, the guard is lifted."""
    held = _job(1, decision="uncertain", question=None)
    released = _job(2, is_held=False, decision="uncertain", question=None)
    other = SlurmJob(
        job_id=3, submitted_at=0, is_held=True, comment={"memgate": {"decision": "admit"}}
    )
    twin = Twin(held, released, other)

    assert _look(twin)[0] == 0

    assert twin.done == [("note", 2)]
    assert "held" not in twin.noted[2]


def test_what_an_administrator_holds_too_stays_held() -> None:
    """memgate's own hold ends: its record says so, and the job waits for the administrator."""
    twin = Twin(replace(_job(), is_admin_held=True))

    _look(twin, (200, ESTIMATE))

    assert twin.done == [("note", 1)]
    assert "held" not in twin.noted[1]


def test_jobs_wait_while_memgate_is_away() -> None:
    """And somebody is told."""
    twin = Twin(_job())

    num_waiting, told = _look(twin, httpx2.ConnectError("refused"))

    assert (num_waiting, twin.done) == (1, [])
    assert "the server does not answer" in told[0]


@pytest.mark.parametrize(
    "spec", ['{"batch_size": 1.}', '{"name": "a\tb"}', f'{{"batch_size": {"9" * 5000}}}']
)
def test_a_question_that_cannot_be_read_stops_nobody_else(spec: str) -> None:
    """Lua lets pass what Python does not read: that job is described wrongly, the next goes on."""
    question = f'{{"job": {spec}, "gpu": {{"name": "t4", "count": 1}}}}'
    twin = Twin(_job(1, question=question), _job(2))

    assert _look(twin, (200, ESTIMATE))[0] == 0

    assert twin.done == [("note", 1), ("cancel", 1), ("release", 2), ("note", 2)]
    assert twin.noted[1]["decision"] == "bad_spec"
    assert twin.noted[1]["why"].startswith("the description is not JSON: ")


def test_a_job_that_is_gone_does_not_stop_the_others() -> None:
    """Its owner may cancel it at any moment."""
    twin = Twin(_job(1), _job(2), gone=True)

    _, told = _look(twin, (200, ESTIMATE))

    assert twin.done == [("release", 1), ("release", 2)]
    assert told[0] == "job 1: scontrol failed: Invalid job id specified"


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
        SlurmJob(job_id=7, submitted_at=5.0, is_held=True, comment={"memgate": {}})
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
    """Nor are jobs that are over."""
    assert list(read_queue(_queue(admin_comment=comment))) == []
    assert list(read_queue(_queue(job_state="COMPLETED"))) == []


@pytest.mark.parametrize("text", ["", "{}", '{"jobs": 1}', '{"jobs": [1]}', '{"jobs": [{}, 1]}'])
def test_what_is_no_queue_is_said_to_be_none(text: str) -> None:
    """One error, in words."""
    with pytest.raises(SlurmError, match="squeue --json says something unforeseen"):
        list(read_queue(text))


def test_a_note_is_one_argument_and_keeps_others_notes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No shell sees it, and whoever else writes into AdminComment finds it again."""
    ran: list[Any] = []
    monkeypatch.setattr("memgate_service.admission.slurm.controller.run", ran.append)
    job = SlurmJob(job_id=7, submitted_at=0, is_held=True, comment={"site": 1, "memgate": {}})

    SlurmController().note(job, {"why": "'; $(reboot) \n JobId=1"})

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
    monkeypatch.setattr("memgate_service.admission.slurm.controller.run", ran.append)
    (job,) = read_queue(_queue(**part))

    SlurmController().release(job)
    SlurmController().note(job, {})
    SlurmController().cancel(job)

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


def test_a_refusal_names_a_batch_that_fits() -> None:
    """The largest; or the one that was found in the time there was."""
    found = {"code": "SMALLER_BATCH_FITS", "message": "batch size 8 would be admitted on t4"}
    more = {"reasons": [*REJECT["reasons"], found], "largest_batch_size": None}
    hurried = ServedEstimate(**(REJECT | more), id=JOB_ID)

    whys = [
        judge_held(said, "t4", ReleasePolicy(), 0).why for said in (_estimate("reject"), hurried)
    ]

    assert "; batch size 12 fits, the largest that does; as it is, it fits on a30" in whys[0]
    assert "; batch size 8 would be admitted on t4; as it is, it fits on a30" in whys[1]


def test_a_rejected_job_is_held_until_its_advice_is_there() -> None:
    """Its owner is told once, and then which batch would fit; nobody else has to wait."""
    pending = _estimate("reject").model_copy(update={"is_advice_pending": True})
    let_in = ReleasePolicy(rejected=ReleaseAction.RELEASE)

    assert judge_held(pending, "t4", ReleasePolicy(), 0).action is ReleaseAction.WAIT
    assert judge_held(pending, "t4", let_in, 0).action is ReleaseAction.RELEASE
    assert judge_held(_estimate("reject"), "t4", ReleasePolicy(), 0).action is ReleaseAction.CANCEL
