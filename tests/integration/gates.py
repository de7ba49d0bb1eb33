"""The webhooks of a service under test, and somebody who answers what they ask when told to."""

from __future__ import annotations

import copy
from typing import Any

from fastapi.testclient import TestClient

from memgate_worker.queue.store import JobStore
from tests.admission import answer_work, read_patch


class Gate:
    """A service, and somebody who answers what it asks when told to."""

    def __init__(self, client: TestClient) -> None:
        self.client = client

    def ask(self, verb: str, review: dict[str, Any], timeout: str = "30s") -> dict[str, Any]:
        """Send a review; return the response in the one that comes back."""
        path = f"/webhooks/kubernetes/{verb}?timeout={timeout}"
        answer = self.client.post(path, json=review)
        assert answer.status_code == 200, answer.text
        document = answer.json()
        assert document["apiVersion"] == "admission.k8s.io/v1"
        assert document["kind"] == "AdmissionReview"
        response = document["response"]
        assert response["uid"] == review["request"]["uid"]
        assert isinstance(response, dict)
        return response

    def learn(self, review: dict[str, Any], size_bytes: int) -> None:
        """Have what a review asks answered as if its jobs took so much."""
        self.ask("mutate", review)
        for job_id in self.store.open_jobs():
            work = self.store.read(job_id).work
            assert self.store.finish(job_id, answer_work(work, size_bytes).model_dump_json())

    def asked(self) -> list[str]:
        """Return the kinds of all questions there have been."""
        return sorted(self.store.read(job_id).kind for job_id in self.store.newest(0, 99))

    @property
    def store(self) -> JobStore:
        """Where the answers are."""
        store = self.client.app.state.dependencies.queue.store  # type: ignore[attr-defined]
        assert isinstance(store, JobStore)
        return store

    def mutated(self, review: dict[str, Any]) -> dict[str, Any]:
        """Return a review about what the webhook makes of the object."""
        response = self.ask("mutate", review)
        assert response["allowed"]
        changed = copy.deepcopy(review)
        apply_patch(changed["request"]["object"], read_patch(response))
        return changed


def apply_patch(document: Any, patch: list[dict[str, Any]]) -> None:
    """Do what RFC 6902 says, as far as we use it; not the code under test."""
    for step in patch:
        *parents, last = [
            part.replace("~1", "/").replace("~0", "~") for part in step["path"][1:].split("/")
        ]
        inside = document
        for part in parents:
            inside = inside[int(part) if isinstance(inside, list) else part]
        key: Any = int(last) if isinstance(inside, list) else last
        if step["op"] == "add":
            assert not isinstance(inside, list)
            inside[key] = step["value"]
        elif step["op"] == "replace":
            assert key in inside
            inside[key] = step["value"]
        elif step["op"] == "test":
            assert inside[key] == step["value"]
        else:
            del inside[key]
