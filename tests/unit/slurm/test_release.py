"""Held jobs: what becomes of them, and in which order that is done."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx2
import pytest

from memgate import Client
from memgate.errors import Fault, InputError
from memgate.units import GIB
from memgate_service.admission.core.policy import Action
from memgate_service.admission.core.policy_file import PolicyFile
from memgate_service.admission.core.rules import Mode, PolicyDocument, Subject
from memgate_service.admission.core.sequence import AskEstimates
from memgate_service.admission.core.server_asker import ServerAsker
from memgate_service.admission.slurm.commands import SlurmCommands, SlurmError, SlurmJob
from memgate_service.admission.slurm.records import AdminComment, Record
from memgate_service.admission.slurm.release import Releaser
from memgate_service.admission.slurm.settling import make_policy, read_question
from memgate_service.admission.slurm.spool import Spool
from tests.unit.service.canned_server import ESTIMATE, JOB, JOB_ID, Answer, Server

QUESTION = json.dumps({"job": JOB, "gpu": {"name": "t4", "count": 1}})
REJECT = ESTIMATE | {
    "decision": "reject",
    "reasons": [{"code": "DOES_NOT_FIT", "message": "needs 20 GiB, t4 has 14 GiB"}],
    "needs_bytes": 20 * GIB,
    "least_bytes": 19 * GIB,
    "available_bytes": 14 * GIB,
    "capacity_bytes": 14 * GIB,
    "fits_on": ["a30", "l4", "a100-40", "a100-80"],
    "largest_batch_size": 12,
}
UNCERTAIN = REJECT | {"decision": "uncertain"}

#: the options of ``memgate slurm release``, by default
DEFAULTS: dict[str, Any] = {
    "rejected": Action.REJECT,
    "uncertain": Action.ADMIT,
    "unanswered": Action.WAIT,
    "patience_seconds": 600.0,
}


def _problem(status: int, fault: Fault, *, code: str = "ANY", **more: Any) -> Answer:
    document = {"type": "t", "title": "t", "status": status, "code": code, "detail": "why not"}
    return status, document | {"fault": fault} | more


class Twin(SlurmCommands):
    """Slurm in memory: remembers what was done to it."""

    def __init__(self, *jobs: SlurmJob, gone: bool = False) -> None:
        self._jobs = list(jobs)
        self._gone = gone
        self.done: list[tuple[str, int]] = []
        self.audited: list[dict[str, Any]] = []
        self.noted: dict[int, Record] = {}

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

    def hold(self, job: SlurmJob) -> None:
        """Remember."""
        self.done.append(("hold", job.job_id))

    def notify(self, job: SlurmJob, message: str) -> None:
        """Remember."""
        assert message.startswith("memgate: this job does not fit on t4")
        self.done.append(("notify", job.job_id))

    def note(self, job: SlurmJob, record: Record) -> None:
        """Remember."""
        self.done.append(("note", job.job_id))
        self.noted[job.job_id] = record


def _job(number: int = 1, *, is_held: bool = True, **record: Any) -> SlurmJob:
    fields: dict[str, Any] = {
        "decision": "pending",
        "held": True,
        "gpu": "t4",
        "question": QUESTION,
    } | record
    comment = AdminComment(record=Record(**fields), others={})
    return SlurmJob(job_id=number, submitted_at=0, is_held=is_held, comment=comment)


def _look(
    twin: Twin, *answers: Answer, waited: float = 10.0, **options: Any
) -> tuple[int, list[str]]:
    logged: list[str] = []
    server = Server(*answers)
    mode = options.pop("mode", "enforce")
    path = options.pop("policy", None)
    policy = make_policy(**(DEFAULTS | options))

    def serve(request: httpx2.Request) -> httpx2.Response:
        if request.url.path != "/audit":
            return server(request)
        twin.audited += json.loads(request.read())["entries"]
        return httpx2.Response(201, json={})

    with Client("http://memgate", transport=httpx2.MockTransport(serve), num_tries=1) as client:
        num_waiting = Releaser(
            client,
            twin,
            policy,
            logged.append,
            clock=lambda: waited,
            policy_file=PolicyFile(path, logged.append, default=PolicyDocument(mode=Mode(mode))),
        ).look()
    assert server.is_done
    return num_waiting, logged


def _outcome(answer: Answer, *, waited: float = 10.0, **options: Any) -> tuple[str, str]:
    """Return what becomes of a held job, and the decision that is noted."""
    twin = Twin(_job())
    num_waiting, _ = _look(twin, answer, waited=waited, **options)
    if num_waiting:
        assert twin.done == []
        return "wait", ""
    done = [what for what, _ in twin.done if what != "note"] or ["hold"]
    assert twin.noted[1].gpu == "t4"
    return done[0], twin.noted[1].decision


_WRONG_FIELD = {"rule": "is wrong", "value": "0"}

#: what the author of a description can correct
MISTAKES = [
    pytest.param(
        _problem(422, Fault.CALLER, errors=[_WRONG_FIELD | {"field": "job.batch_size"}]),
        id="a field of the job",
    ),
    pytest.param(_problem(422, Fault.CALLER, errors=[_WRONG_FIELD | {"field": ""}]), id="not JSON"),
    pytest.param(_problem(422, Fault.CALLER, job=JOB_ID), id="found out by a worker"),
    pytest.param(_problem(413, Fault.CALLER, code="TOO_LARGE"), id="too long"),
]


@pytest.mark.parametrize(
    ("answer", "want"),
    [
        ((200, ESTIMATE), ("release", "admit")),
        ((200, REJECT), ("cancel", "reject")),
        ((200, UNCERTAIN), ("hold", "uncertain")),
    ],
    ids=["it fits", "it does not fit", "it may not fit"],
)
def test_each_estimate_has_a_consequence(answer: Answer, want: tuple[str, str]) -> None:
    """What the operator chose for that decision."""
    assert _outcome(answer, uncertain=Action.HOLD) == want


@pytest.mark.parametrize("answer", MISTAKES)
def test_a_mistake_of_its_author_cancels_a_job(answer: Answer) -> None:
    """As it is refused at sbatch; or it is held, if the operator wants that."""
    assert _outcome(answer) == ("cancel", "bad_spec")
    assert _outcome(answer, rejected=Action.HOLD) == ("hold", "bad_spec")


#: what the author cannot correct, though the question is wrong: it comes from our settings
OPERATORS = [
    pytest.param(_problem(422, Fault.CALLER, code="UNKNOWN_GPU"), id="GPU without a field"),
    pytest.param(_problem(422, Fault.CALLER, errors=[_WRONG_FIELD | {"field": "gpu"}]), id="GPU"),
    pytest.param(
        _problem(422, Fault.CALLER, errors=[_WRONG_FIELD | {"field": "gpu.count"}]), id="count"
    ),
    pytest.param(_problem(401, Fault.CALLER, code="NO_KEY"), id="key"),
    pytest.param(_problem(421, Fault.CALLER, code="WRONG_HOST"), id="address"),
    pytest.param(_problem(503, Fault.OPERATOR, job=JOB_ID), id="runtime"),
    pytest.param(_problem(503, Fault.PASSING), id="away"),
    pytest.param(_problem(503, Fault.PASSING, job=JOB_ID), id="killed"),
    pytest.param(_problem(409, Fault.PASSING, job=JOB_ID), id="canceled"),
    pytest.param(_problem(500, Fault.PASSING, code="A_NEW_CODE"), id="of a later version"),
    pytest.param((202, {"id": JOB_ID, "state": "running"}), id="being made"),
    pytest.param(httpx2.ConnectError("refused"), id="no server"),
]


@pytest.mark.parametrize("answer", OPERATORS)
def test_nothing_is_canceled_for_a_fault_of_the_operator_or_one_that_passes(
    answer: Answer,
) -> None:
    """The job waits; once patience runs out, the operator's choice counts."""
    strict = {"uncertain": Action.REJECT, "unanswered": Action.ADMIT}

    assert _outcome(answer) == ("wait", "")
    assert _outcome(answer, waited=599, **strict) == ("wait", "")
    assert _outcome(answer, waited=601, **strict) == ("release", "unanswered")


@pytest.mark.parametrize("fault", [Fault.UNSUPPORTED, Fault.JOB])
def test_a_job_that_cannot_be_run_counts_as_uncertain(fault: Fault) -> None:
    """Released by default. It is never canceled: a strict operator's job waits for a person."""
    answer = _problem(422, fault, job=JOB_ID)

    assert _outcome(answer) == ("release", "uncertain")
    assert _outcome(answer, uncertain=Action.HOLD) == ("hold", "uncertain")
    assert _outcome(answer, uncertain=Action.REJECT) == ("hold", "uncertain")


def test_no_policy_cancels_a_job_that_has_no_answer() -> None:
    """That memgate is down is never the job's fault."""
    with pytest.raises(InputError, match="not the job's fault"):
        make_policy(**(DEFAULTS | {"unanswered": Action.REJECT}))


def test_a_record_says_what_would_fit() -> None:
    """Where the owner finds it: what it needs, a batch, GPUs, and where to look."""
    twin = Twin(_job())
    _look(twin, (200, REJECT | {"id": JOB_ID, "page": "https://memgate.example/ui/jobs/1"}))
    record = twin.noted[1]

    assert (record.needs, record.capacity, record.id) == (20 * GIB, 14 * GIB, JOB_ID)
    assert record.page == "https://memgate.example/ui/jobs/1"
    assert record.why == (
        "does not fit on t4: needs 20.00 GiB, t4 has 14.00 GiB; batch size 12 fits, the largest"
        " that does; as it is, it fits on a30, l4, a100-40"
    )


def test_a_limit_of_memgates_is_called_one() -> None:
    """The owner of a job is not to look for a mistake in it."""
    twin = Twin(_job())
    _look(twin, _problem(422, Fault.UNSUPPORTED, job=JOB_ID))

    assert "a limit of memgate's, not the job's: why not" in twin.noted[1].why


def test_one_question_is_asked_once_for_all_its_jobs() -> None:
    """And each is released before its record says so: stopped between, nothing is lost."""
    twin = Twin(_job(1), _job(2))

    assert _look(twin, (200, ESTIMATE))[0] == 0

    assert twin.done == [("release", 1), ("note", 1), ("release", 2), ("note", 2)]
    assert twin.noted[1] == Record(
        decision="admit", needs=1, capacity=1, gpu="t4", id=JOB_ID, page=f"/ui/jobs/{JOB_ID}"
    )


def test_a_job_that_is_canceled_is_logged_why_first() -> None:
    """While it can still be written to; and stays guarded until it is gone."""
    twin = Twin(_job())

    _look(twin, (200, REJECT))

    assert twin.done == [("note", 1), ("cancel", 1)]
    assert twin.noted[1].held


def test_a_job_waits_while_a_runtime_is_missing() -> None:
    """Until the operator has installed it; the log says so, and nothing is remembered."""
    twin = Twin(_job())

    num_waiting, logged = _look(twin, _problem(503, Fault.OPERATOR, job=JOB_ID))

    assert (num_waiting, twin.done) == (1, [])
    assert logged == ["no answer: why not"]


def test_what_an_administrator_has_released_is_not_canceled() -> None:
    """Only its record is brought up to date."""
    twin = Twin(_job(is_held=False))

    _look(twin, (200, REJECT))

    assert twin.done == [("note", 1)]
    assert not twin.noted[1].held


def test_what_waits_for_a_person_is_left_alone() -> None:
    """Nobody is asked; once it is released, the guard is lifted."""
    held = _job(1, decision="uncertain", question="")
    released = _job(2, is_held=False, decision="uncertain", question="")
    other = _job(3, decision="admit", held=False)
    twin = Twin(held, released, other)

    assert _look(twin)[0] == 0

    assert twin.done == [("note", 2)]
    assert not twin.noted[2].held


@pytest.mark.parametrize("mode", ["warn", "audit"])
def test_where_nothing_is_enforced_any_more_nobody_waits_for_a_person(mode: str) -> None:
    """GIVEN jobs held under a policy that is milder now, THEN they are released and recorded."""
    held = _job(1, decision="uncertain", question="", audit="a" * 16)
    by_owner = _job(2, decision="reject", question="", owner_held=True)
    twin = Twin(held, by_owner)

    _look(twin, mode=mode)

    assert twin.done == [("release", 1), ("note", 1), ("note", 2)]
    assert [one.held for one in twin.noted.values()] == [False, False]
    assert [(one["job"], one["decision"], one["done"]) for one in twin.audited] == [
        ("1", "uncertain", "released"),
        ("2", "reject", "released"),
    ]


def test_a_policy_that_cannot_be_read_releases_nobody_who_waits_for_a_person(
    tmp_path: Path,
) -> None:
    """A mistake in a file must not undo what an administrator has yet to decide."""
    (tmp_path / "policy.json").write_text("{")
    twin = Twin(_job(1, decision="uncertain", question=""))

    _look(twin, policy=tmp_path / "policy.json")

    assert twin.done == []


def test_two_programs_do_not_send_one_file(tmp_path: Path) -> None:
    """The second one leaves it alone: it would remove what the first has only begun to read."""
    spool = tmp_path / "audit.jsonl"
    line = {"id": "a" * 16, "at": 1.0, "gate": "slurm", "decision": "reject", "done": "refused"}
    spool.write_text(json.dumps(line) + "\n")
    sent: list[int] = []

    def serve(request: httpx2.Request) -> httpx2.Response:
        sent.append(len(json.loads(request.read())["entries"]))
        Spool(client, spool, pytest.fail).send({})  # while the first one sends
        return httpx2.Response(201, json={})

    with Client("http://memgate", transport=httpx2.MockTransport(serve), num_tries=1) as client:
        Spool(client, spool, pytest.fail).send({})

    assert sent == [1]
    assert not list(tmp_path.glob("*.sending"))


def test_what_an_administrator_holds_too_stays_held() -> None:
    """memgate's own hold ends: its record says so, and the job waits for the administrator."""
    twin = Twin(replace(_job(), is_admin_held=True))

    _look(twin, (200, ESTIMATE))

    assert twin.done == [("note", 1)]
    assert not twin.noted[1].held


def test_jobs_wait_while_memgate_is_away() -> None:
    """And somebody is logged."""
    twin = Twin(_job())

    num_waiting, logged = _look(twin, httpx2.ConnectError("refused"))

    assert (num_waiting, twin.done) == (1, [])
    assert "the server does not answer" in logged[0]


@pytest.mark.parametrize(
    "spec", ['{"batch_size": 1.}', '{"name": "a\tb"}', f'{{"batch_size": {"9" * 5000}}}']
)
def test_a_question_that_cannot_be_read_stops_nobody_else(spec: str) -> None:
    """Lua lets pass what Python does not read: that job is described wrongly, the next goes on."""
    question = f'{{"job": {spec}, "gpu": {{"name": "t4", "count": 1}}}}'
    twin = Twin(_job(1, question=question), _job(2))

    assert _look(twin, (200, ESTIMATE))[0] == 0

    assert twin.done == [("note", 1), ("cancel", 1), ("release", 2), ("note", 2)]
    assert twin.noted[1].decision == "bad_spec"
    assert twin.noted[1].why.startswith("the description is not JSON: ")


def test_a_job_that_is_gone_does_not_stop_the_others() -> None:
    """Its owner may cancel it at any moment."""
    twin = Twin(_job(1), _job(2), gone=True)

    _, logged = _look(twin, (200, ESTIMATE))

    assert twin.done == [("release", 1), ("release", 2)]
    assert logged[0] == "job 1: scontrol failed: Invalid job id specified"


def test_a_smaller_batch_is_named_while_the_largest_is_not_known() -> None:
    """The one that was found in the time there was."""
    found = {"code": "SMALLER_BATCH_FITS", "message": "batch size 8 would be admitted on t4"}
    hurried = REJECT | {"reasons": [*REJECT["reasons"], found], "largest_batch_size": None}
    twin = Twin(_job())

    _look(twin, (200, hurried))

    assert "; batch size 8 would be admitted on t4; as it is" in twin.noted[1].why


@pytest.mark.parametrize(
    ("options", "want"),
    [({}, "wait"), ({"rejected": Action.HOLD}, "wait"), ({"rejected": Action.ADMIT}, "release")],
    ids=["to be canceled", "to be held", "to be released"],
)
def test_a_rejected_job_is_held_until_its_advice_is_there(
    options: dict[str, Any], want: str
) -> None:
    """Its owner is told once, and then which batch would fit; no other job has to wait."""
    headers = {"Location": f"/jobs/{JOB_ID}", "X-Memgate-Advice": "pending"}

    assert _outcome((200, REJECT, headers), **options)[0] == want


def test_a_run_that_failed_is_not_repeated_at_once() -> None:
    """Asking again has it run again: every two seconds would keep a worker busy."""
    now = [0.0]
    server = Server(_problem(503, Fault.PASSING, job=JOB_ID), (200, ESTIMATE))
    transport = httpx2.MockTransport(server)
    with Client("http://memgate", transport=transport, num_tries=1) as client:
        asker = ServerAsker(client, clock=lambda: now[0])
        question = AskEstimates(read_question(QUESTION).questions())
        found = []
        for now[0] in (0.0, 2.0, 29.0, 31.0):
            asker.start_round()
            found.append(type(asker.do(question)[""]).__name__)

    assert found == ["MissingAnswer"] * 3 + ["KnownAnswer"]


RUNNING: Answer = (202, {"id": JOB_ID, "state": "running"})

#: a job with a timer, the time, the answer, the mode -> what is done, and what the audit says
TIMED: list[tuple[str, float, Answer, str, list[str], list[str]]] = [
    ("it fits", 10, (200, ESTIMATE), "enforce", ["release", "note"], ["released"]),
    ("it does not", 10, (200, REJECT), "enforce", ["note", "cancel"], ["canceled"]),
    ("it may not", 10, (200, UNCERTAIN), "enforce", ["note", "hold"], ["held"]),
    ("no answer", 10, RUNNING, "enforce", [], []),
    ("timer over, no answer", 61, RUNNING, "enforce", ["note"], ["released"]),
    ("timer over", 61, (200, ESTIMATE), "enforce", ["note", "note"], ["released", "noted"]),
    ("it does not, warned", 10, (200, REJECT), "warn", ["release", "note"], ["released"]),
    ("it does not, silent", 10, (200, REJECT), "audit", ["release", "note"], ["released"]),
]


@pytest.mark.parametrize(
    ("now", "answer", "mode", "want", "audited"),
    [row[1:] for row in TIMED],
    ids=[r[0] for r in TIMED],
)
def test_a_timer_ends_every_hold(
    now: float, answer: Answer, mode: str, want: list[str], audited: list[str]
) -> None:
    """Slurm starts the job by itself when it ends; a policy that enforces nothing releases it."""
    twin = Twin(_job(timer=60))
    _look(twin, answer, waited=now, mode=mode, uncertain=Action.HOLD)

    assert [what for what, _ in twin.done] == want
    assert [one["done"] for one in twin.audited] == audited


def test_a_timer_that_is_nearly_over_does_not_wait_for_advice() -> None:
    """The job would start in the meantime."""
    advised = (200, REJECT, {"Location": f"/jobs/{JOB_ID}", "X-Memgate-Advice": "pending"})
    early, late = Twin(_job(timer=60)), Twin(_job(timer=60))
    _look(early, advised, waited=10)
    _look(late, advised, waited=57)

    assert early.done == []
    assert [what for what, _ in late.done] == ["note", "cancel"]


#: a job that was let in without an answer: is it pending, what is said of late ones, the mode
LATE: list[tuple[bool, dict[str, Any], str, list[str], str]] = [
    (True, {"late": "admit"}, "enforce", ["note"], "noted"),
    (True, {"late": "reject"}, "enforce", ["note", "cancel"], "canceled"),
    (False, {"late": "reject"}, "enforce", ["note", "notify"], "noted"),
    (False, {"late": "admit"}, "enforce", ["note", "notify"], "noted"),
    (True, {"late": "reject"}, "warn", ["note"], "noted"),
    (True, {"late": "reject", "mode": "warn"}, "enforce", ["note"], "noted"),
    (False, {"late": "reject"}, "audit", ["note"], "noted"),
    (False, {"late": "reject", "mode": "audit"}, "enforce", ["note"], "noted"),
]


@pytest.mark.parametrize(("is_pending", "record", "mode", "want", "audited"), LATE)
def test_what_was_let_in_without_an_answer_is_followed_up(
    is_pending: bool, record: dict[str, Any], mode: str, want: list[str], audited: str
) -> None:
    """It is recorded, its owner is told, and what has started is never canceled."""
    job = replace(
        _job(held=False, **record),
        is_pending=is_pending,
        subject=Subject(user="ada", account="lab", partition=["debug"]),
    )
    twin = Twin(job)
    _look(twin, (200, REJECT), mode=mode)

    assert [what for what, _ in twin.done] == want
    (entry,) = twin.audited
    assert (entry["done"], entry["decision"], entry["user"]) == (audited, "reject", "ada")
    assert twin.noted[1].question == ""


#: a job that had ended when it was looked at: its record, did it start, the answer, the audit
ENDED: list[tuple[str, dict[str, Any], bool, Answer | None, list[str]]] = [
    ("its timer ended", {"timer": 5}, True, (200, REJECT), ["released", "noted"]),
    ("let in without an answer", {"held": False}, True, (200, ESTIMATE), ["noted"]),
    ("still no answer", {"timer": 5}, True, RUNNING, ["released"]),
    ("canceled by its owner", {"timer": 5}, False, None, []),
    ("canceled by us", {"decision": "reject", "question": ""}, True, None, []),
]


@pytest.mark.parametrize(
    ("record", "had_node", "answer", "audited"),
    [row[1:] for row in ENDED],
    ids=[r[0] for r in ENDED],
)
def test_a_job_that_ended_before_anybody_looked_is_recorded(
    record: dict[str, Any], had_node: bool, answer: Answer | None, audited: list[str]
) -> None:
    """Slurm changes nothing about it any more; the audit has it, once, whoever sends it."""
    job = replace(_job(audit="6afdc16c808e0d71", **record), has_ended=True, had_node=had_node)
    twin = Twin(job)
    num_waiting, _ = _look(twin, *([answer] if answer else []))

    assert (num_waiting, twin.done) == (0, [])
    assert [one["done"] for one in twin.audited] == audited
    assert [one["id"] for one in twin.audited] == [f"6afdc16c808e0d71-{one}" for one in audited]


def test_a_reason_names_cards_of_the_cluster() -> None:
    """The plugin notes which there are: others are of no use to the owner."""
    twin = Twin(_job(cards="a100-40,t4"))
    _look(twin, (200, REJECT))

    assert twin.noted[1].why.endswith("as it is, it fits on a100-40")
