"""The OpenAPI document says what is true: its examples work, and answers have its schemas."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
from fastapi.testclient import TestClient
from jsonschema import Draft202012Validator  # type: ignore[import-untyped]

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.replay import replay
from memgate.capacity import AMPLE_BYTES
from memgate.contract import Failure, JobRecord, WorkKind
from memgate.errors import Fault
from memgate.gpus import CATALOGUE, parse_gpu
from memgate.max_batch import find_max_batch
from memgate.pipeline import estimate_timeline
from memgate.report import Estimate, Fit, FitEntry
from memgate.timeline import Alloc, Category, Free, Label, Timeline
from memgate.timeline_file.writing import write_timeline
from memgate.views import view_timeline
from memgate_service.http.app import create_app
from memgate_service.settings import ServiceSettings
from memgate_worker.queue.store import JobStore
from tests.builders import mib
from tests.integration.pages import run_of
from tests.timeline_files import make_plain
from tests.valkey import running_valkey

_TIMELINE = Timeline(
    events=(Alloc(0, mib(30)), Free(0), Alloc(1, mib(30))),
    labels=(Label(Category.ACTIVATIONS, "fc"), Label(Category.PARAMETERS, "fc")),
)


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    """Make a service on a real Valkey; workers are played by the tests."""
    with (
        running_valkey() as url,
        TestClient(create_app(ServiceSettings(redis_url=url))) as made,
    ):
        yield made


@pytest.fixture(autouse=True)
def _forget(client: TestClient) -> None:
    _store(client).redis.flushall()
    client.app.state.dependencies.answers.clear()  # type: ignore[attr-defined]


def _store(client: TestClient) -> JobStore:
    store = client.app.state.dependencies.queue.store  # type: ignore[attr-defined]
    assert isinstance(store, JobStore)
    return store


@cache
def _document() -> dict[str, Any]:
    return create_app(ServiceSettings()).openapi()


def _resolve(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in schema:
        return schema
    found: dict[str, Any] = _document()["components"]["schemas"][schema["$ref"].split("/")[-1]]
    return found


def _check(answer: Any, path: str, method: str = "get") -> None:
    """Compare an answer with what the document says of its status."""
    document = _document()
    responses = document["paths"][path][method]["responses"]
    assert str(answer.status_code) in responses, answer.text
    said = responses[str(answer.status_code)]
    kind = answer.headers["content-type"].partition(";")[0]
    assert kind in said["content"]
    for name, header in said.get("headers", {}).items():
        assert not header.get("required") or name in answer.headers
    if kind.endswith("json"):
        schema = said["content"][kind]["schema"] | {"components": document["components"]}
        Draft202012Validator(schema).validate(answer.json())


def _examples() -> Iterator[Any]:
    for path, methods in _document()["paths"].items():
        for method, operation in methods.items():
            for kind, content in operation.get("requestBody", {}).get("content", {}).items():
                schema = _resolve(content["schema"])
                if kind == "multipart/form-data":
                    schema = _resolve(schema["properties"]["request"])
                for number, example in enumerate(schema["examples"]):
                    name = f"{method} {path} {kind} {number}"
                    yield pytest.param(path, method, kind, example, id=name)


def _answer(record: JobRecord) -> str:
    """Answer as a worker would, of a job that is three events long: no engine is needed."""

    def ask(gpu: Any) -> Estimate:
        said = estimate_timeline(
            _TIMELINE, gpu, alloc_conf="", engine="phantom", runtime="r", versions={}, notes=()
        )
        return said.model_copy(update={"timings_ms": {"trace": 1, "replay": 1, "total": 2}})

    if record.kind is WorkKind.FIT:
        gpus = [FitEntry.of(gpu, ask(parse_gpu(gpu.name))) for gpu in CATALOGUE.values()]
        return Fit(gpus=gpus, smallest=gpus[0].gpu).model_dump_json()
    said = ask(record.work.target)
    if record.kind is WorkKind.MAX_BATCH:
        too_much = said.model_copy(update={"decision": "reject", "headroom_bytes": -1})
        found = find_max_batch(lambda size: said if size == 1 else too_much, 1)
        assert found is not None
        return found.model_dump_json()
    return said.model_dump_json()


def _send(client: TestClient, path: str, kind: str, example: Any) -> Any:
    if kind == "multipart/form-data":
        asked = (None, json.dumps(example), "application/json")
        file = write_timeline(make_plain())  # the one kind that both routes take
        return client.post(path, files={"request": asked, "timeline": ("job.memgate", file)})
    return client.post(path, json=example)


@pytest.mark.parametrize(("path", "method", "kind", "example"), list(_examples()))
def test_an_example_is_accepted_and_answered_as_documented(
    client: TestClient, path: str, method: str, kind: str, example: Any
) -> None:
    """Every example of the document is asked for, first without and then with an answer."""
    if path == "/outcomes":
        example = example | {"job": _finished(client)}
    first = _send(client, path, kind, example)
    _check(first, path, method)
    if path.startswith("/webhooks/"):
        assert first.json()["response"]["allowed"]
        return
    assert first.status_code in (201, 202)
    if path in ("/outcomes", "/audit"):
        return

    where = first.headers["location"]
    _check(client.get(where), "/jobs/{job_id}")
    store = _store(client)
    run = run_of(client, first.json()["id"])
    store.finish(run, _answer(store.read(run)))
    second = _send(client, path, kind, example)

    assert second.status_code == 200
    _check(second, path, method)
    _check(client.get(where), "/jobs/{job_id}")
    _check(client.get("/jobs"), "/jobs")


def _finished(client: TestClient) -> str:
    example = _document()["components"]["schemas"]["EstimateCreate"]["examples"][0]
    job = str(client.post("/estimate", json=example).json()["id"])
    store = _store(client)
    run = run_of(client, job)
    store.finish(run, _answer(store.read(run)))
    ample = replay(_TIMELINE, parse_alloc_conf(""), AMPLE_BYTES)
    store.save_view(run, view_timeline(_TIMELINE, ample).model_dump_json())
    return job


def test_there_are_examples_of_every_body() -> None:
    """A stranger can send something that works to each route that takes a body."""
    asked = [example.values[:3] for example in _examples()]
    wanted = {
        (path, method, kind)
        for path, methods in _document()["paths"].items()
        for method, operation in methods.items()
        for kind in operation.get("requestBody", {}).get("content", {})
    }

    assert set(asked) == wanted
    assert len(wanted) == 10


def test_what_is_read_has_the_documented_schema(client: TestClient) -> None:
    """Each route that takes no body, with something to show."""
    job = _finished(client)
    client.post("/outcomes", json={"job": job, "measured_peak_bytes": 10})
    for path in _document()["paths"]:
        if "get" in _document()["paths"][path]:
            _check(client.get(path.replace("{job_id}", job)), path)
    _check(client.delete(f"/jobs/{job}"), "/jobs/{job_id}", "delete")


def test_problems_have_the_documented_schema(client: TestClient) -> None:
    """Of the framework, of our own, and of jobs."""
    example = _document()["components"]["schemas"]["EstimateCreate"]["examples"][0]
    job = client.post("/estimate", json=example).json()["id"]
    error = Failure(code="JOB_FAILED", message="no", fault=Fault.JOB)
    _store(client).fail(run_of(client, job), error)

    _check(client.post("/estimate", json=example), "/estimate", "post")
    _check(client.post("/estimate", json={}), "/estimate", "post")
    _check(client.post("/estimate", content=b"x"), "/estimate", "post")
    _check(client.get("/jobs", params={"limit": 0}), "/jobs")
    _check(client.get(f"/jobs/{'0' * 32}"), "/jobs/{job_id}")


def test_keys_are_in_the_document_where_they_are_needed() -> None:
    """And not where they are off, so that nobody looks for one."""
    locked = create_app(ServiceSettings(host="0.0.0.0")).openapi()
    is_open = {path for path, methods in locked["paths"].items() if "security" not in str(methods)}

    assert is_open == {"/healthz", "/readyz", "/metrics"}
    assert locked["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    assert "security" not in json.dumps(_document()["paths"])


def test_the_document_is_openapi() -> None:
    """Each reference leads somewhere, and every operation has an id of its own."""
    document = _document()
    text = json.dumps(document)
    for name in {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}:
        assert name in document["components"]["schemas"]
    ids = [
        operation["operationId"]
        for methods in document["paths"].values()
        for operation in methods.values()
    ]
    assert len(ids) == len(set(ids))
    assert document["openapi"].startswith("3.1")
