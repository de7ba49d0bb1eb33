"""Whose question is it, over HTTP on a real Valkey: who sees it, withdraws it and reports on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from fastapi.testclient import TestClient

from memgate.owner import Owner
from memgate_service.http import asked
from memgate_worker.queue.keys import Right, Role
from tests.admission import make_estimate
from tests.integration.pages import OURS, make_app, run_of, store_of
from tests.integration.running import make_key

JOB = {
    "model": {"source": "torchvision", "name": "resnet18"},
    "input": {"shape": [3, 32, 32]},
    "batch_size": 4,
}
ASKED: dict[str, Any] = {"job": JOB, "gpu": "rtx-3060"}
FOR_ALICE = {"X-Memgate-User": "alice", "X-Memgate-Job-Name": "train"}


@pytest.fixture
def client(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[TestClient]:
    """Make a service that wants keys; what it does not know, no other service has just answered."""
    monkeypatch.setattr(asked, "SETTLE_SECONDS", 0.0)
    with TestClient(make_app(redis_url, api_keys="required"), follow_redirects=False) as made:
        yield made


def _bearer(redis_url: str, rights: Role | Right = Role.SUBMIT, user: str = "") -> dict[str, str]:
    return {"Authorization": f"Bearer {make_key(redis_url, rights, user)}"}


def _ask(client: TestClient, headers: dict[str, str]) -> str:
    answer = client.post("/estimate", json=ASKED, headers=headers)
    assert answer.status_code in (200, 202), answer.text
    return answer.headers["location"].removeprefix("/jobs/")


def _answer(client: TestClient, question: str) -> None:
    said = make_estimate(2 << 30, "rtx-3060").model_dump_json()
    assert store_of(client).finish(run_of(client, question), said)


def test_a_key_sees_its_own_questions_alone(client: TestClient, redis_url: str) -> None:
    """In the list, by id, and its curve; a key with read-all sees everybody's."""
    mine, theirs = _bearer(redis_url), _bearer(redis_url)
    all_seeing = _bearer(redis_url, Right.READ_OWN | Right.READ_ALL)
    first, second = _ask(client, mine), _ask(client, theirs)
    _answer(client, first)
    known = _ask(client, mine)  # from the store
    cached = _ask(client, theirs)  # from memory

    def listed(headers: dict[str, str]) -> set[str]:
        client.portal.call(client.app.state.dependencies.asked.flush)  # type: ignore
        return {one["id"] for one in client.get("/jobs", headers=headers).json()["jobs"]}

    assert listed(mine) == {first, known}
    assert listed(theirs) == {second, cached}
    assert listed(all_seeing) == {first, second, known, cached}
    for path in (f"/jobs/{first}", f"/jobs/{first}/timeline", f"/jobs/{known}"):
        refused = client.get(path, headers=theirs)
        assert (refused.status_code, refused.json()["code"]) == (403, "NOT_YOURS"), path
        assert "read-all" in refused.json()["detail"]
    assert client.get(f"/jobs/{cached}", headers=theirs).json()["result"]["id"] == cached
    assert client.get(f"/jobs/{run_of(client, first)}", headers=all_seeing).status_code == 404


def test_ids_tell_nothing_of_what_was_asked(client: TestClient, redis_url: str) -> None:
    """They are of chance: whoever knows the question does not know the id."""
    mine = _bearer(redis_url)
    ids = {_ask(client, mine) for _ in range(5)}

    assert len(ids) == 5
    assert len({run_of(client, one) for one in ids}) == 1


def test_only_a_key_that_may_asks_for_others(client: TestClient, redis_url: str) -> None:
    """The record has whom it named, and the share is theirs; also of answers from memory."""
    gate, plain = _bearer(redis_url, Role.GATE), _bearer(redis_url)
    named = FOR_ALICE | {"X-Memgate-Job-Name": quote("größer, wie\tman denkt")}
    question = _ask(client, gate | named)
    record = client.get(f"/jobs/{question}", headers=gate).json()
    refusals = [client.post("/estimate", json=ASKED, headers=plain | FOR_ALICE)]
    open_jobs = client.get("/metrics").text
    _answer(client, question)
    _ask(client, gate)
    again = _ask(client, gate | FOR_ALICE)
    refusals.append(client.post("/estimate", json=ASKED, headers=plain | FOR_ALICE))
    own_name = client.post("/estimate", json=ASKED, headers=plain | {"X-Memgate-Job-Name": "x"})

    key = gate["Authorization"].split("_")[1]
    want = Owner(key=key, user="alice", job_name="größer, wie?man denkt")
    assert record["owner"] == want.model_dump()
    assert 'memgate_caller_open_jobs{caller="user alice"} 1.0' in open_jobs
    assert client.get(f"/jobs/{again}", headers=gate).json()["owner"]["user"] == "alice"
    for refused in refusals:
        assert (refused.status_code, refused.json()["code"]) == (403, "NOT_ALLOWED")
        assert "X-Memgate-User" in refused.json()["detail"]
        assert "on-behalf" in refused.json()["detail"]
    assert own_name.status_code == 200, "what one's own job is called, anybody may say"


@pytest.mark.parametrize("name", ["a" * 300, quote("a\nb"), "\xe9"])
def test_an_unfit_name_is_the_callers_mistake(
    client: TestClient, redis_url: str, name: str
) -> None:
    """It names the header; nothing is asked."""
    headers = {"X-Memgate-User": name} | _bearer(redis_url, Role.GATE)
    raw = [(header.encode(), value.encode("latin-1")) for header, value in headers.items()]
    answer = client.post("/estimate", json=ASKED, headers=raw)

    assert (answer.status_code, answer.json()["fault"]) == (422, "caller")
    assert answer.json()["detail"].startswith("X-Memgate-User is ")


def test_a_user_s_own_key_sees_what_gates_ask_for_them(client: TestClient, redis_url: str) -> None:
    """And withdraws it; another user's does neither."""
    gate = _bearer(redis_url, Role.GATE)
    alice, bob = (_bearer(redis_url, Role.SUBMIT, name) for name in ("alice", "bob"))
    question = _ask(client, gate | FOR_ALICE)

    assert client.get(f"/jobs/{question}", headers=alice).status_code == 200
    assert client.get("/jobs", headers=alice).json()["jobs"][0]["id"] == question
    assert client.get("/jobs", headers=bob).json()["jobs"] == []
    assert client.get(f"/jobs/{question}", headers=bob).status_code == 403
    assert client.delete(f"/jobs/{question}", headers=bob).status_code == 403
    assert client.delete(f"/jobs/{question}", headers=alice).json()["state"] == "canceled"


def test_one_withdraws_and_the_other_still_gets_the_answer(
    client: TestClient, redis_url: str
) -> None:
    """The run goes on for those who are left; who has withdrawn is told so."""
    mine, theirs = _bearer(redis_url), _bearer(redis_url)
    gone, kept = _ask(client, mine), _ask(client, theirs)

    assert client.delete(f"/jobs/{gone}", headers=mine).json()["state"] == "canceled"
    _answer(client, kept)
    assert client.get(f"/jobs/{kept}", headers=theirs).json()["state"] == "done"
    withdrawn = client.get(f"/jobs/{gone}", headers=mine).json()
    assert (withdrawn["state"], withdrawn["result"]) == ("canceled", None)
    listed = client.get("/jobs", params={"state": "canceled"}, headers=mine).json()["jobs"]
    assert [one["id"] for one in listed] == [gone]


@pytest.mark.parametrize("known", [False, True])
def test_high_priority_needs_its_right(client: TestClient, redis_url: str, known: bool) -> None:
    """403 that says what to ask an operator for; though the answer is in memory."""
    plain, gate = _bearer(redis_url), _bearer(redis_url, Role.GATE)
    urgent = ASKED | {"priority": "high"}
    if known:
        where = client.post("/estimate", json=urgent, headers=gate).headers["location"]
        _answer(client, where.removeprefix("/jobs/"))
        assert client.post("/estimate", json=urgent, headers=gate).status_code == 200
        cached = client.post("/estimate", json=urgent, headers=gate)
        assert cached.headers["x-memgate-cache"] == "memory"
    refused = client.post("/estimate", json=urgent, headers=plain)

    assert (refused.status_code, refused.json()["code"]) == (403, "NOT_ALLOWED")
    assert "priority is 'high'" in refused.json()["detail"]
    assert "--rights" in refused.json()["detail"]
    assert client.post("/estimate", json=urgent, headers=gate).status_code in (200, 202)


def test_outcomes_are_of_one_s_own_jobs(client: TestClient, redis_url: str) -> None:
    """A key does not move the accuracy by others' jobs; a gate reports those of its users."""
    mine, theirs, gate = _bearer(redis_url), _bearer(redis_url), _bearer(redis_url, Role.GATE)
    question = _ask(client, mine)
    _answer(client, question)
    outcome = {"job": question, "measured_peak_bytes": 3 << 30}

    refused = client.post("/outcomes", json=outcome, headers=theirs)
    assert (refused.status_code, refused.json()["code"]) == (403, "NOT_YOURS")
    assert client.get("/accuracy", headers=mine).json()["all"]["num_outcomes"] == 0
    assert client.post("/outcomes", json=outcome, headers=mine).status_code == 201
    assert client.post("/outcomes", json=outcome, headers=gate).status_code == 201


# --- the link


@pytest.mark.parametrize(
    ("headers", "days", "opens"),
    [(FOR_ALICE, 7, True), (FOR_ALICE, 0, False), ({}, 7, False)],
    ids=["asked by a gate", "turned off", "one's own"],
)
def test_the_link_that_a_gate_prints_opens_to_look_at_only(
    redis_url: str, headers: dict[str, str], days: float, opens: bool
) -> None:
    """For whoever has it: the page and what it fetches, and nothing that asks anything."""
    app = make_app(redis_url, api_keys="required", link_days=days)
    with TestClient(app, follow_redirects=False) as client:
        question = _ask(client, _bearer(redis_url, Role.GATE) | headers)
        store_of(client).save_view(run_of(client, question), '{"num_events": 3}')
        _answer(client, question)
        base = f"/ui/jobs/{question}"
        page, advice = client.get(base), client.get(f"{base}/advice")
        state = client.get(f"{base}/state")
        asks = [
            client.post(f"{base}/advice", headers=OURS).status_code,
            client.get(f"{base}/what-if").status_code,
            client.get(f"/ui/try?job={question}").status_code,
            client.get(f"/jobs/{question}").status_code,
            client.get("/").status_code,
        ]

    want = (200, 200, 200) if opens else (303, 401, 401)
    assert (page.status_code, advice.status_code, state.status_code) == want
    assert asks == [401, 303, 303, 401, 303]
    if opens:
        assert "/ui/try" not in page.text
        assert "Sign out" not in page.text


def test_a_link_is_open_for_its_time(client: TestClient, redis_url: str) -> None:
    """Then it needs a key; a key that does not see the question may use the link before."""
    question = _ask(client, _bearer(redis_url, Role.GATE) | FOR_ALICE)
    key = make_key(redis_url, Role.SUBMIT)
    client.post("/ui/sign-in", data={"key": key}, headers=OURS)
    before = client.get(f"/ui/jobs/{question}")
    client.app.state.dependencies.settings.link_days = 1e-9  # type: ignore[attr-defined]
    after = client.get(f"/ui/jobs/{question}")
    client.cookies.clear()
    guest = client.get(f"/ui/jobs/{question}")

    assert (before.status_code, after.status_code, guest.status_code) == (200, 403, 303)
    assert "Edit the spec" not in before.text


# --- the dashboard


def test_the_overview_shows_a_key_its_own_questions(client: TestClient, redis_url: str) -> None:
    """Neither others' decisions, nor what workers do, nor who uses what: that takes read-all."""
    mine, theirs = _bearer(redis_url), _bearer(redis_url)
    own, other = _ask(client, mine), _ask(client, theirs)
    _answer(client, own)

    def overview(shown: str) -> str:
        client.cookies.clear()
        client.post("/ui/sign-in", data={"key": shown}, headers=OURS)
        return client.get("/").text

    page = overview(mine["Authorization"].removeprefix("Bearer "))
    everybodys = overview(make_key(redis_url, Right.READ_OWN | Right.READ_ALL))

    assert f"/ui/jobs/{own}" in page
    assert other not in page
    assert 'id="callers"' not in page
    assert 'id="callers"' in everybodys
