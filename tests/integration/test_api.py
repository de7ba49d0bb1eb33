"""The HTTP API on a real Valkey: what is asked, joined, listed, canceled and uploaded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from fastapi.testclient import TestClient

from memgate.contract import Failure, JobRecord
from memgate.errors import Fault
from memgate.max_batch import MaxBatch
from memgate.report import Fit
from memgate.units import GIB
from memgate_service.http.app import create_app
from memgate_service.settings import ServiceSettings
from memgate_worker.queue.store import JobStore
from tests.admission import make_estimate
from tests.integration.pages import run_of
from tests.running import wait_until

JOB: dict[str, Any] = {
    "model": {"source": "torchvision", "name": "resnet18"},
    "input": {"shape": [3, 32, 32]},
    "batch_size": 4,
}

ASKED = {"job": JOB, "gpu": "rtx-3060"}

RESULT = make_estimate(GIB, "rtx-3060")


def _client(redis_url: str, **settings: Any) -> TestClient:
    return TestClient(create_app(ServiceSettings(redis_url=redis_url, **settings)))


def _store(client: TestClient) -> JobStore:
    store = client.app.state.dependencies.queue.store  # type: ignore[attr-defined]
    assert isinstance(store, JobStore)
    return store


@pytest.fixture
def client(redis_url: str) -> Iterator[TestClient]:
    """Make a service that nobody works for."""
    with _client(redis_url) as made:
        yield made


def _asked(batch_size: int) -> dict[str, Any]:
    return {"job": JOB | {"batch_size": batch_size}, "gpu": "rtx-3060"}


def test_a_question_is_accepted_and_found_under_its_location(client: TestClient) -> None:
    """202 names the job; asked again it is the same one."""
    first = client.post("/estimate", json=ASKED)
    again = client.post("/estimate", content=json.dumps(ASKED, indent=3), headers=_JSON)

    assert first.status_code == again.status_code == 202
    assert first.headers["location"] != again.headers["location"], "each has its own id"
    job = client.get(first.headers["location"]).json()
    assert (job["state"], job["kind"], job["id"]) == ("queued", "estimate", first.json()["id"])
    assert run_of(client, first.json()["id"]) == run_of(client, again.json()["id"])
    assert len(client.get("/jobs").json()["jobs"]) == 2


_JSON = {"Content-Type": "application/json"}


def test_an_answer_comes_from_the_store_then_from_memory(client: TestClient) -> None:
    """200 with the answer itself; the same bytes are not looked up twice."""
    job = client.post("/estimate", json=ASKED).json()["id"]
    assert _store(client).finish(run_of(client, job), RESULT.model_dump_json())

    answers = [client.post("/estimate", json=ASKED) for _ in range(2)]

    ids = [answer.headers["location"].removeprefix("/jobs/") for answer in answers]
    assert len({job, *ids}) == 3
    for answer, mine in zip(answers, ids, strict=True):
        own = {"id": mine, "page": f"/ui/jobs/{mine}"}
        assert answer.json() == RESULT.model_copy(update=own).model_dump(mode="json")
        assert client.get(f"/jobs/{mine}").json()["result"] == answer.json()
    assert [answer.headers["x-memgate-cache"] for answer in answers] == ["store", "memory"]


@pytest.mark.parametrize(
    ("prefer", "want"),
    [
        ("wait=1", "wait=1"),
        ('respond-async, WAIT="1"', "wait=1"),
        ("wait=999999", "wait=1.5"),
        ("wait=-1", None),
        ("wait=99999999999999999999", None),
        ("wait=1e3", None),
        ("await=1", None),
    ],
)
def test_a_preference_is_applied_within_the_limit_or_ignored(
    redis_url: str, prefer: str, want: str | None
) -> None:
    """Never an error: RFC 7240 says to ignore what is not understood."""
    with _client(redis_url, max_wait_seconds=1.5) as client:
        answer = client.post("/estimate", json=ASKED, headers={"Prefer": prefer})

    assert answer.status_code == 202
    assert answer.headers.get("preference-applied") == want


def test_a_job_is_canceled_once_and_can_be_asked_for_again(client: TestClient) -> None:
    """Canceling twice does no harm; asking again begins anew."""
    where = client.post("/fit", json={"job": JOB}).headers["location"]

    states = [client.delete(where).json()["state"] for _ in range(2)]
    again = client.post("/fit", json={"job": JOB})

    assert states == ["canceled", "canceled"]
    assert again.status_code == 202
    assert client.get(where).json()["state"] == "canceled", "it was withdrawn"
    assert client.get(again.headers["location"]).json()["state"] == "queued"


@pytest.mark.parametrize(
    ("code", "fault", "want"),
    [
        ("BAD_TRACE", "caller", 422),
        ("JOB_FAILED", "job", 422),
        ("NOT_MODELLED", "unsupported", 422),
    ],
)
def test_a_job_that_failed_is_a_problem_with_its_own_code(
    client: TestClient, code: str, fault: str, want: int
) -> None:
    """The job has the same reason as the answer."""
    job = client.post("/max-batch", json=ASKED).json()["id"]
    error = Failure(code=code, message="because", fault=Fault(fault))
    assert _store(client).fail(run_of(client, job), error)

    answer = client.post("/max-batch", json=ASKED)

    assert (answer.status_code, answer.json()["code"]) == (want, code)
    assert answer.json()["detail"] == "because"
    assert run_of(client, answer.json()["job"]) == run_of(client, job)
    assert answer.json()["fault"] == fault
    assert client.get(f"/jobs/{job}").json()["error"]["code"] == code


@pytest.mark.parametrize("fault", [Fault.OPERATOR, Fault.PASSING])
def test_what_the_operator_can_mend_is_asked_anew(client: TestClient, fault: Fault) -> None:
    """The failure is told to those who look at the job, and not to the next who asks."""
    job = client.post("/max-batch", json=ASKED).json()["id"]
    assert _store(client).fail(
        run_of(client, job), Failure(code="X", message="because", fault=fault)
    )
    told = client.get(f"/jobs/{job}").json()

    again = client.post("/max-batch", json=ASKED)

    assert (told["state"], told["error"]["fault"]) == ("failed", fault)
    assert (again.status_code, again.json()["state"]) == (202, "queued")


def test_jobs_are_listed_by_page_and_filter(client: TestClient) -> None:
    """The newest first; null where there is no next page."""
    ids = [client.post("/estimate", json=_asked(size)).json()["id"] for size in range(1, 6)]
    client.delete(f"/jobs/{ids[2]}")

    first = client.get("/jobs", params={"limit": 3}).json()
    second = client.get("/jobs", params={"limit": 3, "offset": first["next_offset"]}).json()
    canceled = client.get("/jobs", params={"state": "canceled"}).json()
    fits = client.get("/jobs", params={"kind": "fit"}).json()

    assert [job["id"] for job in first["jobs"] + second["jobs"]] == ids[::-1]
    assert (first["next_offset"], second["next_offset"]) == (3, None)
    assert [job["id"] for job in canceled["jobs"]] == [ids[2]]
    assert fits == {"jobs": [], "next_offset": None}


def test_a_filter_reads_no_more_jobs_than_are_shown(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Specs may be long, and thousands are looked through."""
    ids = [client.post("/estimate", json=_asked(size)).json()["id"] for size in range(1, 81)]
    for job in ids[:2]:
        client.delete(f"/jobs/{job}")
    read = JobStore.read_many
    asked: list[int] = []

    def read_many(store: JobStore, job_ids: Sequence[str]) -> list[JobRecord]:
        asked.append(len(job_ids))
        return read(store, job_ids)

    monkeypatch.setattr(JobStore, "read_many", read_many)
    canceled = client.get("/jobs", params={"state": "canceled"}).json()
    queued = client.get("/jobs", params={"state": "queued", "offset": 60, "limit": 10}).json()

    assert [job["id"] for job in canceled["jobs"]] == [ids[1], ids[0]]
    assert [job["id"] for job in queued["jobs"]] == ids[2:][::-1][60:70]
    assert asked == [2, 10]


def test_a_timeline_is_there_once_an_estimate_is_done(client: TestClient) -> None:
    """404 before, with a code of its own."""
    job = client.post("/estimate", json=ASKED).json()["id"]
    before = client.get(f"/jobs/{job}/timeline")
    _store(client).save_view(run_of(client, job), '{"num_events": 0}')

    assert (before.status_code, before.json()["code"]) == (404, "NO_TIMELINE")
    assert client.get(f"/jobs/{job}/timeline").json() == {"num_events": 0}


def test_an_outcome_is_compared_with_what_was_predicted(client: TestClient) -> None:
    """201, and the accuracy knows of it; of an open job there is nothing to compare."""
    job = client.post("/estimate", json=ASKED).json()["id"]
    predicted = RESULT.peak_on_gpu_bytes
    outcome = {"job": job, "measured_peak_bytes": 2 * predicted}
    early = client.post("/outcomes", json=outcome)
    _store(client).finish(run_of(client, job), RESULT.model_dump_json())

    made = client.post("/outcomes", json=outcome)

    assert (early.status_code, early.json()["code"]) == (422, "BAD_INPUT")
    assert (made.status_code, made.json()["predicted_peak_bytes"]) == (201, predicted)
    accuracy = client.get("/accuracy").json()
    assert accuracy["all"]["median_relative_error"] == 0.5
    assert set(accuracy["by_gpu"]) == {"rtx-3060"}


def _answered(client: TestClient) -> str:
    job: str = client.post("/estimate", json=ASKED).json()["id"]
    _store(client).finish(run_of(client, job), RESULT.model_dump_json())
    return job


def test_a_second_outcome_of_a_run_is_not_counted(client: TestClient) -> None:
    """A gate and a callback may both report it."""
    job = _answered(client)
    for run in ("slurm-1", "slurm-1", "slurm-2"):
        outcome = {"job": job, "measured_peak_bytes": 5 * GIB, "run": run}
        assert client.post("/outcomes", json=outcome).status_code == 201
    assert client.get("/accuracy").json()["all"]["num_outcomes"] == 2


def test_outcomes_of_processes_teach_about_the_context(client: TestClient) -> None:
    """Those of allocators do not; too few are shown and nothing follows from them."""
    job = _answered(client)
    for size, owner in ((460, "process"), (480, "process"), (500, "allocator")):
        measured = RESULT.peak_reserved_on_gpu_bytes + size * 10**6
        outcome = {"job": job, "measured_peak_bytes": measured, "owner": owner}
        made = client.post("/outcomes", json=outcome | {"driver": "550.54.15"})
        assert made.json()["context_bytes"] == (size * 10**6 if owner == "process" else None)
    (lesson,) = client.get("/accuracy").json()["lessons"]
    assert (lesson["gpu"], lesson["driver"]) == ("rtx-3060", "550.54.15")
    assert (lesson["num_outcomes"], lesson["context"], lesson["is_drifting"]) == (2, None, False)


def test_an_outcome_has_one_owner(client: TestClient) -> None:
    """The older field and the newer one must not contradict each other."""
    outcome = {"job": "0" * 32, "measured_peak_bytes": 1, "is_reserved_only": True}
    refused = client.post("/outcomes", json=outcome | {"owner": "device"})
    assert refused.status_code == 422
    assert "leave is_reserved_only out" in refused.text


def _upload(trace: bytes, request: object = None) -> dict[str, Any]:
    asked = json.dumps({"gpu": "rtx-3060"} if request is None else request)
    return {"request": (None, asked, "application/json"), "trace": ("t.json", trace)}


def test_a_trace_is_uploaded_and_named_by_its_bytes(client: TestClient) -> None:
    """The same trace and GPU are the same run; a 'request' with a file name is taken too."""
    first = client.post("/estimate", files=_upload(b"{}"))
    named = {"request": ("request.json", b'{"gpu": "rtx-3060"}'), "trace": ("x", b"{}")}
    again = client.post("/estimate", files=named)
    other = client.post("/estimate", files=_upload(b"{ }"))

    assert first.status_code == again.status_code == other.status_code == 202
    runs = [run_of(client, one.json()["id"]) for one in (first, again, other)]
    assert runs[0] == runs[1] != runs[2]


def test_inference_is_another_question_about_a_trace(client: TestClient) -> None:
    """And none about a job spec, which describes training."""
    training = client.post("/estimate", files=_upload(b"{}"))
    false = client.post("/estimate", files=_upload(b"{}", {"gpu": "rtx-3060", "inference": False}))
    true = client.post("/estimate", files=_upload(b"{}", {"gpu": "rtx-3060", "inference": True}))
    refused = client.post("/estimate", json=ASKED | {"inference": True})
    taken = client.post("/estimate", json=ASKED | {"inference": False})

    assert taken.status_code == 202
    runs = [run_of(client, one.json()["id"]) for one in (training, false, true)]
    assert runs[0] == runs[1] != runs[2]
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == "inference"
    assert "inference is for traces; a job spec describes training" in refused.json()["detail"]


def test_pages_are_strict_and_need_no_other_server(client: TestClient) -> None:
    """/docs names nothing of another host, and its policy would not let it."""
    page = client.get("/docs")

    assert page.headers["content-type"].startswith("text/html")
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "//" not in page.text.replace("<!doctype html>", "")
    for path in ("start.js", "swagger-ui.css", "swagger-ui-bundle.js"):
        assert client.get(f"/docs/{path}").status_code == 200


def test_requests_are_counted_by_route_not_by_path(client: TestClient) -> None:
    """Else anybody could make Prometheus keep a series for every path there is."""
    client.get("/jobs/" + "0" * 32)
    client.get("/a/path/of/mine")

    figures = client.get("/metrics").text
    assert 'route="/jobs/{job_id}",status="404"' in figures
    assert 'route="unknown",status="404"' in figures
    assert "mine" not in figures


@pytest.mark.parametrize("public_url", ["", "https://memgate.example/there"])
@pytest.mark.parametrize("kind", ["/estimate", "/estimate of a trace", "/fit", "/max-batch"])
def test_an_answer_says_where_it_can_be_looked_at(
    redis_url: str, public_url: str, kind: str
) -> None:
    """By POST, from the cache of the process and by GET: its question's id, and page."""
    asked: dict[str, Any] = {"json": {"job": JOB} if kind == "/fit" else ASKED}
    if kind == "/estimate of a trace":
        asked = {"files": _upload(b"{}")}
    result = {
        "/fit": Fit(gpus=[], smallest=None),
        "/max-batch": MaxBatch(
            batch_size=None, headline="", is_monotone=True, tried=[], estimate=None
        ),
    }.get(kind, RESULT)
    path = kind.partition(" ")[0]
    with _client(redis_url, public_url=public_url) as client:
        job = client.post(path, **asked).json()["id"]
        assert _store(client).finish(run_of(client, job), result.model_dump_json())

        answers = [client.post(path, **asked).json() for _ in range(2)]
        answers.append(client.get(f"/jobs/{job}").json()["result"])
        asked_ones = client.app.state.dependencies.asked  # type: ignore[attr-defined]
        wait_until(lambda: not asked_ones._waiting, "all questions are stored")
        listed = [one["result"] for one in client.get("/jobs").json()["jobs"]]
        page = client.get(f"/ui/jobs/{job}")

    ids = [answer["id"] for answer in answers]
    assert len(set(ids)) == 3
    assert {one["id"] for one in listed} == set(ids)
    for one in answers + listed:
        assert one["page"] == f"{public_url}/ui/jobs/{one['id']}"
    assert (page.status_code, job in page.text) == (200, True)
