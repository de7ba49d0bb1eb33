"""A service with a dashboard under test, in this process, on a real Valkey."""

from __future__ import annotations

import time
from typing import Any

from fastapi import FastAPI
from fastapi.testclient import TestClient

from memgate.contract import Asker, Work
from memgate.owner import Owner
from memgate_service.http.app import create_app
from memgate_service.settings import ServiceSettings
from memgate_worker.queue.client import AskedQuestion
from memgate_worker.queue.store import JobStore

#: of no job
NO_ID = "0" * 32

#: what a form of our own pages comes with
OURS = {"Origin": "http://testserver"}


def make_app(redis_url: str, **settings: Any) -> FastAPI:
    """Make the service; nobody needs a key unless the settings say so."""
    return create_app(ServiceSettings(redis_url=redis_url, **settings))


def store_of(client: TestClient) -> JobStore:
    """Return where a service keeps its jobs."""
    store = client.app.state.dependencies.queue.store  # type: ignore[attr-defined]
    assert isinstance(store, JobStore)
    return store


def run_of(client: TestClient, question_id: str) -> str:
    """Return the id of the run that answers a question: what a worker knows it by."""
    queue = client.app.state.dependencies.queue  # type: ignore[attr-defined]
    question = queue.questions.find(question_id)
    assert isinstance(question, AskedQuestion)
    return question.run


def question_about(work: Work, asked_by: Asker = Asker.CALLER) -> AskedQuestion:
    """Return a question of nobody's that has its run's id: tests need to know it."""
    return AskedQuestion.of(work.id(), work.kind, time.time(), Owner(), asked_by, id=work.id())
