"""The dashboard over HTTP, on a real Valkey: what is kept, and what it costs."""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from html import unescape
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import msgspec
import pytest
from fastapi.testclient import TestClient

from memgate.contract import Asker, Failure, JobRecord, Priority, Work
from memgate.decision import Decision
from memgate.errors import Fault
from memgate.pipeline import estimate_timeline
from memgate.report import Estimate, Reason
from memgate.schemas import EstimateCreate
from memgate.timeline import Alloc, Category, Free, Label, Timeline
from memgate.units import GIB, format_size
from memgate.views import view_timeline
from memgate_worker.queue.history import note_answer, note_failure, read_history
from memgate_worker.queue.store import JobStore
from tests.admission import make_estimate
from tests.builders import make_replay, mib
from tests.integration.pages import NO_ID, OURS, make_app, question_about, run_of, store_of
from tests.integration.queue_place import Place
from tests.integration.running import running

JOB: dict[str, Any] = {
    "model": {"source": "torchvision", "name": "resnet18"},
    "input": {"shape": [3, 8, 8]},
    "batch_size": 2,
}


@pytest.fixture
def client(redis_url: str) -> Iterator[TestClient]:
    """Make a service where nobody needs a key; workers are played by the tests."""
    with TestClient(make_app(redis_url)) as made:
        yield made


def _answer(store: JobStore, work: Work, asked_by: Asker = Asker.CALLER) -> JobRecord:
    """Do a worker's work: an answer that was worked out, its curve, and a line in the log."""
    assert work.gpu is not None
    timeline = Timeline(
        events=(Alloc(0, mib(30)), Free(0), Alloc(1, mib(30))),
        labels=(Label(Category.ACTIVATIONS, "fc"), Label(Category.PARAMETERS, "fc")),
    )
    target = work.target
    said: Estimate = estimate_timeline(
        timeline, target, engine="phantom", runtime="torch", versions={}
    )
    said = said.model_copy(update={"timings_ms": {"run": 7, "trace": 8, "replay": 1, "total": 9}})
    question = question_about(work, asked_by)
    store.create(work.id(), work, Priority.NORMAL, asked_by, question=question)
    record = store.read(work.id())
    replayed = make_replay(*timeline.events)
    store.save_view(work.id(), view_timeline(timeline, replayed).model_dump_json())
    store.finish(work.id(), said.model_dump_json())
    note_answer(store, record, said)
    return store.read(work.id())


def _work(**changes: Any) -> Work:
    return EstimateCreate.model_validate({"job": JOB | changes, "gpu": "rtx-3060"}).work()


# --- what is kept


def test_decisions_are_counted_by_the_minute_and_logged(client: TestClient) -> None:
    """By who answers; what pages asked is in the log and in no count."""
    store = store_of(client)
    record = _answer(store, _work())
    _answer(store, _work(batch_size=3), Asker.DASHBOARD)
    failed = _work(batch_size=4)
    store.create(failed.id(), failed, Priority.NORMAL)
    error = Failure(code="BAD_INPUT", message="x" * 500, fault=Fault.CALLER)
    note_failure(store, store.read(failed.id()), error)

    (counts,) = store.minutes([int(time.time()) // 60])
    log = list(read_history(store))

    assert (counts["outcome:admit"], counts["outcome:caller"]) == (1, 1)
    assert record.estimate is not None
    assert counts["saved_bytes"] == record.estimate.headroom_bytes
    assert counts["runs:made"] == 2
    assert [(one.outcome, one.is_advice) for one in log] == [
        ("caller", False), ("admit", True), ("admit", False),
    ]  # fmt: skip
    assert (log[2].job, log[2].gpu, log[2].subject) == (record.id, "rtx-3060", "resnet18")
    assert len(log[0].message) == 200


def test_a_line_of_another_version_is_left_out_of_the_log(client: TestClient) -> None:
    """An outcome that nobody knows any more must not take the page along."""
    store = store_of(client)
    _answer(store, _work())
    older = next(read_history(store))
    line = msgspec.json.encode(older).replace(b'"admit"', b'"refused"')
    store.note({}, line)
    _answer(store, _work(batch_size=3))

    assert [one.outcome for one in read_history(store)] == ["admit", "admit"]
    assert client.get("/").status_code == 200


def test_a_real_desk_leaves_a_decision(make_place: Callable[..., Place]) -> None:
    """Workers write the log: what they answer, and what they cannot."""
    place = make_place()
    place.submit()
    place.work()

    (decision,) = read_history(place.store)

    assert (decision.kind, decision.outcome) == ("fit", "answered")
    assert place.redis.ttl("memgate:decisions") > 0
    (minute,) = place.redis.scan_iter("memgate:minute:*")
    assert 0 < place.redis.ttl(minute) <= 26 * 3600


def test_known_answers_are_counted_for_all_services_together(
    redis_url: str, client: TestClient
) -> None:
    """In the process while it runs, in the store now and then, and when it ends."""
    body = {"job": JOB, "gpu": "rtx-3060"}
    begin = _minute()
    _answer(store_of(client), _work())
    for _ in range(3):
        assert client.post("/estimate", json=body).status_code == 200
    with TestClient(make_app(redis_url)) as other:
        assert other.post("/estimate", json=body).status_code == 200

    assert _counts_since(begin, client)["cache:store"] == 1
    client.__exit__()
    counts = _counts_since(begin, client)
    assert (counts["cache:memory"], counts["cache:store"]) == (2, 2)


def _minute() -> int:
    return int(time.time()) // 60


def _counts_since(minute: int, client: TestClient) -> Counter[str]:
    """Add up the counts of a minute and of all after it: a test may begin at the end of one."""
    counts: Counter[str] = Counter()
    for of_one in store_of(client).minutes(list(range(minute, _minute() + 1))):
        counts.update(of_one)
    return counts


def test_the_overview_shows_what_is_stored(client: TestClient) -> None:
    """Rendered by the server: without scripts, too."""
    record = _answer(store_of(client), _work())
    client.app.state.overview._seen = None  # type: ignore[attr-defined]

    page = client.get("/").text

    assert f'href="/ui/jobs/{record.id}"' in page
    assert '<span data-live="admit">1</span>' in page
    assert "There are no workers" in page


def test_viewers_share_what_is_read(client: TestClient) -> None:
    """Twenty pages within a second are one look at the store."""
    reader = client.app.state.overview  # type: ignore[attr-defined]
    reader._clock = lambda: 1e9
    before = reader.num_reads

    for _ in range(20):
        assert client.get("/").status_code == 200

    assert reader.num_reads == before + 1


def test_minutes_that_are_over_are_read_once(client: TestClient) -> None:
    """A day of them at first, then the last two."""
    store, reader = store_of(client), client.app.state.overview  # type: ignore[attr-defined]
    now = [time.time() // 60 * 60]  # a step of 61 s is a minute on, not two
    reader._clock = lambda: now[0]
    asked: list[int] = []
    read = store.minutes

    def note(minutes: Any) -> Any:
        asked.append(len(minutes))
        return read(minutes)

    store.minutes = note  # type: ignore[method-assign]
    for _ in range(3):
        reader.read()
        now[0] += 61

    assert asked[0] == 1440
    assert set(asked[1:]) <= {2, 3}


# --- a job


def _decide(store: JobStore, gib: float, *, doubts: tuple[Reason, ...] = ()) -> JobRecord:
    """Answer as a worker would: a job that takes so much at once, of what a t4 has left."""
    gpu = {"name": "t4", "already_used_bytes": GIB}
    work = EstimateCreate.model_validate({"job": JOB, "gpu": gpu}).work()
    said = make_estimate(int(gib * GIB), gpu, doubts=doubts).model_copy(
        update={"largest_batch_size": 1} if gib > 20 else {}
    )
    store.create(work.id(), work, Priority.NORMAL, question=question_about(work))
    record = store.read(work.id())
    timeline = Timeline(events=(Alloc(0, int(gib * GIB)), Free(0)))
    view = view_timeline(timeline, make_replay(*timeline.events))
    store.save_view(work.id(), view.model_dump_json())
    store.finish(work.id(), said.model_dump_json())
    note_answer(store, record, said)
    return store.read(work.id())


def test_every_page_states_the_sizes_of_the_one_explanation(client: TestClient) -> None:
    """GIVEN a reject, THEN page, history and API say the same; the headline has two sizes."""
    record = _decide(store_of(client), 30)
    assert record.estimate is not None
    said = record.estimate.explanation
    needs, has = re.findall(r"[\d.]+ GiB", said.headline)

    page = unescape(client.get(f"/ui/jobs/{record.id}").text)
    overview = unescape(client.get("/").text)
    answer = client.get(f"/jobs/{record.id}").json()["result"]

    (sentence,) = re.findall(r'<p class="sentence">(.*?)</p>', page)
    assert sentence == f"resnet18, batch 2 {said.headline}"
    below = page.partition(sentence)[2].partition("</section>")[0]
    assert below.index(said.helps[0]) < below.index(said.helps[1])
    (row,) = [one for one in overview.split("<tr>") if record.id in one]
    assert re.findall(r"[\d.]+ GiB", row) == [needs, has, needs, has]
    assert said.headline in row
    assert answer["explanation"]["headline"] == said.headline
    sizes = [format_size(answer[name]) for name in ("needs_bytes", "available_bytes")]
    assert sizes == [needs, has]


@pytest.mark.parametrize(
    ("gib", "doubts", "want", "marks"),
    [
        (30, (), Decision.REJECT, "it dies where it is marked"),
        (13.3, (), Decision.UNCERTAIN, "may run out of memory where it is marked"),
        (1, (Reason(code="UNPAIRED", message="frees without a block"),), Decision.UNCERTAIN, ""),
    ],
    ids=["reject", "within the margin", "doubted"],
)
def test_a_page_says_that_a_job_dies_only_if_it_does(
    client: TestClient, gib: float, doubts: tuple[Reason, ...], want: Decision, marks: str
) -> None:
    """An uncertain page names its reason, and neither text nor chart says that the job dies."""
    record = _decide(store_of(client), gib, doubts=doubts)
    assert record.estimate is not None
    assert record.estimate.decision is want

    page = unescape(client.get(f"/ui/jobs/{record.id}").text)
    curve = client.get(f"/ui/jobs/{record.id}/timeline").json()
    verdict = page.partition('class="sentence"')[2].partition("</section>")[0]

    assert marks in page
    assert ("it dies" in page) == (want is Decision.REJECT)
    assert curve["decision"] == want
    reason = doubts[0].message if doubts else "depending on the CUDA context"
    assert (reason in verdict) == (want is Decision.UNCERTAIN)


def test_a_curve_that_cannot_be_read_is_not_shown(client: TestClient) -> None:
    """Stored in another version's layout: the page is there without it."""
    store = store_of(client)
    record = _answer(store, _work())
    store.save_view(record.id, '{"num_events": 3}')

    assert client.get(f"/ui/jobs/{record.id}").status_code == 200
    assert client.get(f"/ui/jobs/{record.id}/timeline").status_code == 404


def test_a_job_whose_answer_cannot_be_read_is_not_there(client: TestClient) -> None:
    """Stored in another version's layout: every page is a 404, and the list leaves it out."""
    store = store_of(client)
    record = _answer(store, _work())
    store.redis.hset(f"memgate:job:{record.id}", "result", '{"decision": "admit"}')

    paths = (f"/jobs/{record.id}", f"/ui/jobs/{record.id}", f"/ui/jobs/{record.id}/advice")
    found = [client.get(path).status_code for path in paths]

    assert found == [404, 404, 404]
    assert client.get("/jobs").json()["jobs"] == []
    outcome = {"job": record.id, "measured_peak_bytes": GIB}
    assert client.post("/outcomes", json=outcome).status_code == 404
    asked = client.post("/estimate", json={"job": JOB, "gpu": "rtx-3060"})
    assert (asked.status_code, asked.json()["state"]) == (202, "queued")


def test_the_curve_of_a_job_comes_in_the_size_that_is_asked_for(client: TestClient) -> None:
    """With where the GPU ends; a job without one is told as such."""
    record = _answer(store_of(client), _work())

    view = client.get(f"/ui/jobs/{record.id}/timeline", params={"points": 16}).json()
    missing = client.get(f"/ui/jobs/{NO_ID}/timeline")

    assert view["num_events"] == 3
    assert view["events"] == [0, 1, 2]
    assert 11 * GIB < view["capacity_bytes"] < 11.65 * GIB
    assert missing.status_code == 404


@pytest.mark.parametrize(
    "gpu",
    ["a10g", {"memory_bytes": 9 * GIB, "compute_capability": "8.6"},
     {"name": "t4", "already_used_bytes": GIB}],
)  # fmt: skip
def test_a_job_is_edited_as_it_was_asked(client: TestClient, gpu: Any) -> None:
    """The form holds its spec: unchanged, it is the same question."""
    hostile = JOB | {"model": {"source": "torchvision", "name": "</textarea><b>: # no"}}
    work = EstimateCreate.model_validate({"job": hostile, "gpu": gpu}).work()
    store_of(client).create(work.id(), work, Priority.NORMAL, question=question_about(work))

    page = client.get(f"/ui/try?job={work.id()}").text
    spec = unescape(page.partition("<textarea")[2].partition(">")[2].partition("</textarea>")[0])
    chosen = re.search(r'<input id="gpu"[^>]* value="([^"]+)"', page)
    assert chosen is not None
    form = {"spec": spec, "gpu": chosen[1], "engine": "auto"}
    asked = client.post("/ui/try/spec", data=form, headers=OURS)

    assert "<b>" not in page
    assert run_of(client, asked.json()["location"].rpartition("/")[2]) == work.id()
    assert client.get(f"/ui/try?job={NO_ID}").status_code == 200, "one that is gone is an example"


def test_advice_is_asked_once_at_low_priority(client: TestClient) -> None:
    """By whoever opens the page first; then everybody sees what became of it."""
    record = _answer(store_of(client), _work(optimizer={"name": "Adam"}))

    before = client.get(f"/ui/jobs/{record.id}/advice").json()
    asked = client.post(f"/ui/jobs/{record.id}/advice", headers=OURS).json()
    again = client.post(f"/ui/jobs/{record.id}/advice", headers=OURS).json()

    assert before["waiting"] == []
    assert len(asked["waiting"]) == 6
    assert again == asked
    records = [store_of(client).read(run_of(client, job)) for job in asked["waiting"]]
    assert {one.priority for one in records} == {Priority.LOW}
    assert {one.asked_by for one in records} == {Asker.DASHBOARD}


def test_what_if_says_what_it_will_take(client: TestClient) -> None:
    """A run that is stored is replayed; what is not has to be run."""
    record = _answer(store_of(client), _work())
    same = {"batch_size": "2", "precision": "fp32", "optimizer": "SGD"}

    new = client.post(
        f"/ui/jobs/{record.id}/what-if", data=same | {"batch_size": "5"}, headers=OURS
    ).json()
    unchanged = client.post(f"/ui/jobs/{record.id}/what-if", data=same, headers=OURS).json()
    wrong = client.post(
        f"/ui/jobs/{record.id}/what-if", data=same | {"batch_size": "x"}, headers=OURS
    )

    assert (new["is_open"], "a new run is needed" in new["html"]) == (True, True)
    assert (run_of(client, unchanged["job"]), unchanged["is_open"]) == (record.id, False)
    assert wrong.status_code == 422
    assert "batch_size" in wrong.text


def test_a_page_of_decisions_of_ten_thousand_is_quick(client: TestClient) -> None:
    """As quick as one of a hundred, give or take: it reads what it shows."""
    store = store_of(client)
    (line,) = _log_one(store)

    def seconds() -> float:
        client.app.state.overview._seen = None  # type: ignore[attr-defined]
        start = time.perf_counter()
        assert client.get("/").status_code == 200
        return time.perf_counter() - start

    for number in range(100):
        store.note({}, _later(line, number))
    few = min(seconds() for _ in range(5))
    for number in range(10_000):
        store.note({}, _later(line, number))
    many = min(seconds() for _ in range(5))

    assert many < 4 * few + 0.05


def _log_one(store: JobStore) -> list[bytes]:
    _answer(store, _work())
    return store.decisions(0, 1)


def _later(line: bytes, number: int) -> bytes:
    document = json.loads(line)
    return json.dumps(document | {"at": document["at"] + number}).encode()


# --- the end


def test_a_service_that_is_told_to_stop_lets_its_viewers_go(redis_url: str, tmp_path: Path) -> None:
    """Streams end at once; nobody waits for browsers that stay for hours."""
    heard: list[bytes] = []
    with running(redis_url, tmp_path / "log") as service:
        answer = urlopen(f"{service.url}/ui/events", timeout=60)
        while not heard or not heard[-1].startswith(b"event: texts"):
            heard.append(answer.readline())
            assert heard[-1], "the stream ended before it had said anything"
        reading = threading.Thread(target=lambda: heard.append(answer.read()))
        reading.start()
        start = time.monotonic()
    stopped_after = time.monotonic() - start
    reading.join(30)
    answer.close()

    assert heard[0].startswith(b"retry:")
    assert stopped_after < 8
    logged = [json.loads(line) for line in (tmp_path / "log").read_text().splitlines()]
    assert not [line for line in logged if line.get("level") == "error"]


def test_more_pages_than_may_be_live_are_told(redis_url: str, tmp_path: Path) -> None:
    """503 with a reason; the page itself is there."""
    with running(redis_url, tmp_path / "log", max_viewers=0) as service:
        answer = service.say(b"GET /ui/events HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        page = service.say(b"GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")

    assert b" 503 " in answer.split(b"\r\n")[0]
    assert b"TOO_MANY_VIEWERS" in answer
    assert b" 200 " in page.split(b"\r\n")[0]
