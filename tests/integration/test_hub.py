"""Configurations of models that our table does not have, from a hub: a real server, here."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from redis import Redis

from memgate.errors import Fault, InputError, MemgateError, OperatorError
from memgate.gpus import CATALOGUE
from memgate.jobspec import JobSpec
from memgate_worker import local
from memgate_worker.hub import MAX_BYTES, MemoryCache, ModelHub
from memgate_worker.queue.store import JobStore
from memgate_worker.runtimes.runtime import find_runtime, read_runtimes
from memgate_worker.settings import WorkerSettings

TINY = {
    "architectures": ["GPT2LMHeadModel"],
    "model_type": "gpt2",
    "transformers_version": "4.1.0",
    "n_layer": 1,
    "n_embd": 64,
    "n_head": 2,
    "vocab_size": 100,
}


class HubServer:
    """Serves what it is told to, and notes what it is asked for."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                status, headers, body = outer.answers.get(self.path, (404, {}, b""))
                self.send_response(status)
                for name, value in (headers | {"Content-Length": str(len(body))}).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def stop(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def publish(self, name: str, config: object, status: int = 200, **headers: str) -> None:
        """Answer questions about a model."""
        body = config if isinstance(config, bytes) else json.dumps(config).encode()
        self.answers[f"/{name}/resolve/main/config.json"] = (status, headers, body)


@pytest.fixture
def server() -> Iterator[HubServer]:
    """A hub that has nothing yet."""
    server = HubServer()
    yield server
    server.stop()


def make_hub(url: str) -> ModelHub:
    """Make one that has the time of the test."""
    return ModelHub(url, MemoryCache(), now=lambda: datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC))


def make_job(name: str = "acme/tiny", **model: Any) -> JobSpec:
    """Make a job of a model by its name."""
    source = {"source": "transformers", "name": name} | model
    return JobSpec.model_validate(
        {
            "model": source,
            "input": {"sequence_length": 8} if source["source"] == "transformers" else {},
            "batch_size": 1,
        }
    )


def refuse(hub: ModelHub, name: str = "acme/tiny") -> MemgateError:
    """Return the error about a model."""
    with pytest.raises(MemgateError) as raised:
        hub.complete(make_job(name))
    return raised.value


def test_an_unknown_name_is_looked_up_once(server: HubServer) -> None:
    """The job then has the class and the configuration, and the answer says where they are from."""
    server.publish("acme/tiny", TINY)
    hub = make_hub(f"{server.url}/")

    found = [hub.complete(make_job(config={"n_layer": 2})) for _ in range(2)]

    assert server.asked == ["/acme/tiny/resolve/main/config.json"]
    assert found[0] == found[1]
    assert (found[0].job.model.name, found[0].job.model.class_name) == (None, "GPT2LMHeadModel")
    assert found[0].job.model.config == TINY | {"n_layer": 2}
    assert found[0].note is not None
    assert found[0].note.message == (
        f"the configuration of acme/tiny is from {server.url}, 2026-01-02T03:04:05+00:00"
    )


@pytest.mark.parametrize(
    ("name", "source"),
    [("openai-community/gpt2", "transformers"), ("gpt2", "transformers"), ("resnet18", "timm")],
)
def test_what_has_a_name_here_is_not_looked_up(server: HubServer, name: str, source: str) -> None:
    """Our table goes first, and other libraries have names of their own."""
    job = make_job(name, source=source)

    assert make_hub(server.url).complete(job).job == job
    assert server.asked == []


def test_nothing_is_looked_up_unless_it_is_allowed() -> None:
    """The engine then says that the name is unknown."""
    job = make_job()

    assert make_hub("").complete(job).job == job


@pytest.mark.parametrize(
    "name",
    ["tiny", "../x", "a/..", "a/../b", "a/b/c", "a/b?c", "a/b#c", "a@b/c", "a/.b", "ä/b", "a/b\n"],
)
def test_a_name_cannot_lead_elsewhere(server: HubServer, name: str) -> None:
    """It is refused as unknown, and nothing is asked."""
    error = refuse(make_hub(server.url), name)

    assert error.fault is Fault.CALLER
    assert "it is not in the table of public models" in error.message
    assert server.asked == []


@pytest.mark.parametrize("status", [401, 403, 404])
def test_what_the_hub_does_not_show_is_the_callers_mistake(server: HubServer, status: int) -> None:
    """With the names that are similar, and what to give instead."""
    server.publish("google/bert-base-uncased", {}, status)

    error = refuse(make_hub(server.url), "google/bert-base-uncased")

    assert isinstance(error, InputError)
    assert f"does not show it to everybody ({status})" in error.message
    assert "google-bert/bert-base-uncased" in error.mistakes[0].near


@pytest.mark.parametrize("status", [429, 500, 503])
def test_a_hub_that_fails_is_nobodys_fault(server: HubServer, status: int) -> None:
    """The same question may be answered later."""
    server.publish("acme/tiny", {}, status)

    error = refuse(make_hub(server.url))

    assert (error.code, error.fault) == ("HUB_UNREACHABLE", Fault.PASSING)
    assert f"(status {status})" in error.message


def test_a_hub_that_is_not_there_is_nobodys_fault(server: HubServer) -> None:
    """Neither the job's nor the caller's."""
    url = server.url.replace("127.0.0.1", "127.0.0.2")  # nothing listens on this address

    assert refuse(make_hub(url)).code == "HUB_UNREACHABLE"


def test_a_redirect_is_followed_on_the_same_host(server: HubServer) -> None:
    """Hugging Face redirects to its cache."""
    server.publish("acme/tiny", b"", 307, Location="/cache/config.json")
    server.answers["/cache/config.json"] = (200, {}, json.dumps(TINY).encode())

    assert make_hub(server.url).complete(make_job()).job.model.config == TINY


@pytest.mark.parametrize(
    ("location", "want"),
    [
        ("http://127.0.0.2/config.json", "redirects to 127.0.0.2, and only its own host is asked"),
        ("//127.0.0.2/config.json", "redirects to 127.0.0.2, and only its own host is asked"),
        ("file:///etc/passwd", "and only its own host is asked"),
        ("/acme/tiny/resolve/main/config.json", "redirects in a circle"),
    ],
)
def test_no_redirect_leaves_the_host(server: HubServer, location: str, want: str) -> None:
    """An endpoint that does so is for the operator to mend."""
    server.publish("acme/tiny", b"", 302, Location=location)

    error = refuse(make_hub(server.url))

    assert isinstance(error, OperatorError)
    assert want in error.message


def test_what_is_not_a_hub_is_the_operators_mistake(server: HubServer) -> None:
    """A page for people, for one."""
    server.publish("acme/tiny", b"", 418)

    assert refuse(make_hub(server.url)).fault is Fault.OPERATOR


@pytest.mark.parametrize(
    ("config", "want"),
    [
        (b"x" * (MAX_BYTES + 1), "has more than 262,144 bytes"),
        (b"<html>", "is not a JSON object"),
        (b"\xff", "is not a JSON object"),
        ([1], "is not a JSON object"),
        (TINY | {"auto_map": {"AutoModel": "modeling.Tiny"}}, "with code of its own"),
    ],
    ids=["long", "page", "bytes", "list", "code"],
)
def test_a_configuration_that_cannot_be_used_is_refused(
    server: HubServer, config: object, want: str
) -> None:
    """It says nothing about the job, and there is another way to ask."""
    server.publish("acme/tiny", config)

    error = refuse(make_hub(server.url))

    assert error.fault is Fault.UNSUPPORTED
    assert want in error.message


def test_a_configuration_without_a_class_needs_one(server: HubServer) -> None:
    """The caller must say which."""
    server.publish("acme/tiny", {"model_type": "gpt2"})

    error = refuse(make_hub(server.url))

    assert error.fault is Fault.CALLER
    assert "names no class ('architectures'); give 'class' and 'config'" in error.message


def test_labels_count_by_their_number(server: HubServer) -> None:
    """A thousand names of classes are not carried along."""
    labels = {str(one): f"label {one}" for one in range(1000)}
    server.publish("acme/tiny", TINY | {"id2label": labels, "label2id": {}})

    assert make_hub(server.url).complete(make_job()).job.model.config == TINY | {"num_labels": 1000}


def test_workers_share_what_was_looked_up(server: HubServer, redis_url: str) -> None:
    """It is kept in Valkey, and expires."""
    server.publish("acme/tiny", TINY)
    with Redis.from_url(redis_url) as redis:
        stores = [JobStore(redis, WorkerSettings(redis_url=redis_url)) for _ in range(2)]

        found = [ModelHub(server.url, store).complete(make_job()) for store in stores]

        assert len(server.asked) == 1
        assert found[0] == found[1]
        (key,) = redis.keys("memgate:config:*")
        assert redis.ttl(key) > 3600


def test_a_job_is_answered_by_its_name_at_the_hub(
    server: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the name to the run, on the command line's way."""
    if not read_runtimes()[find_runtime(None).name].is_installed:
        pytest.skip("no runtime is built: make runtime")
    server.publish("acme/tiny", TINY)
    monkeypatch.setenv("MEMGATE_HUB", server.url)

    traced = local.trace_spec(make_job(), CATALOGUE["t4"])

    assert [note.code for note in traced.notes] == ["LOOKED_UP"]
    assert traced.num_parameters > 100_000  # 1024 positions of 64 among them


@pytest.mark.parametrize("url", ["huggingface.co", "ftp://x", "https://a:b@x", "https://x?y"])
def test_a_wrong_endpoint_is_named(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is asked."""
    monkeypatch.setenv("MEMGATE_HUB", url)

    with pytest.raises(OperatorError, match="MEMGATE_HUB: "):
        local.trace_spec(make_job(), CATALOGUE["t4"])
