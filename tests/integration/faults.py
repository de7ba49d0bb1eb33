"""A round of faults: many jobs, kills at random instants meanwhile, and what came of each job."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from itertools import pairwise
from typing import Any

from tests.integration.whole import KINDS, LEASE_SECONDS, START_SECONDS, Whole

#: small and quick, each with events enough to be told apart
MODELS = ("squeezenet1_1", "resnet18", "alexnet", "shufflenet_v2_x0_5", "mobilenet_v3_small")
#: the last two share their runs
GPUS = ("a100-40", "t4", "rtx-2080-ti")

#: nothing may hang for longer: a lease runs out, it is missed for half of one more and seen a
#: quarter later, and if no worker is left the next one has to import torch on a busy machine
BOUND_SECONDS = 2 * LEASE_SECONDS + START_SECONDS

_NUM_CLIENTS = 4


@dataclass(slots=True, kw_only=True)
class Round:
    """What happened in a round."""

    num_jobs: int
    num_accepted: int = 0
    num_distinct: int = 0
    #: requests that got no answer, or 503, and were sent again
    num_unanswered: int = 0
    kills: dict[str, int] = field(default_factory=dict)
    num_attempts_more: int = 0
    seconds: float = 0.0
    #: longest time in which no job ended
    longest_stall_seconds: float = 0.0
    #: longest time from being accepted to being answered
    longest_job_seconds: float = 0.0
    #: by which job ids were not done, or were answered differently
    failures: list[str] = field(default_factory=list)
    #: by question: what was answered, without how long it took
    answers: dict[str, Any] = field(default_factory=dict)

    def line(self) -> str:
        """Say it in one line."""
        kills = " ".join(f"{kind}={count}" for kind, count in self.kills.items())
        return (
            f"{self.num_jobs} questions, {self.num_accepted} accepted ({self.num_distinct} jobs),"
            f" {self.num_unanswered} requests repeated, killed: {kills},"
            f" {self.num_attempts_more} attempts more than jobs, {self.seconds:.0f} s,"
            f" longest stall {self.longest_stall_seconds:.1f} s,"
            f" longest job {self.longest_job_seconds:.1f} s,"
            f" failures: {self.failures or 'none'}"
        )


class _Client:
    """Asks, asks again when there is no answer, and notes what it is told."""

    def __init__(self, whole: Whole, result: Round) -> None:
        self._whole = whole
        self._round = result
        self._lock = threading.Lock()
        #: by job: every answer that was ever seen, as JSON
        self.seen: dict[str, set[str]] = {}
        self.questions: dict[str, str] = {}
        #: by question: what was answered at once
        self.given: dict[str, dict[str, Any]] = {}

    def post(self, question: dict[str, Any], wait: float) -> None:
        """Ask until it is accepted."""
        while True:
            status, body = self._whole.ask("POST", "/estimate", question, wait=wait)
            if status in (200, 202):
                break
            self._again(status, body, question)
        with self._lock:
            self._round.num_accepted += 1
            if status == 200:  # its id may be lost with the service that gave it from memory
                self.given[json.dumps(question, sort_keys=True)] = _without_ids(body)
                return
        self._note(body["id"], None, question)

    def read(self, job_id: str) -> dict[str, Any]:
        """Read a job until there is an answer about it."""
        while True:
            status, body = self._whole.ask("GET", f"/jobs/{job_id}", wait=1)
            if status == 200:
                if body["state"] == "done":
                    self._note(job_id, body["result"], None)
                return dict(body)
            self._again(status, body, job_id)

    def _again(self, status: int, body: object, what: object) -> None:
        with self._lock:
            self._round.num_unanswered += 1
            if status not in (0, 503):
                self._round.failures.append(f"{what}: {status} {body}")
        assert status in (0, 503), (status, body)
        time.sleep(0.1)

    def _note(self, job_id: str, answer: object, question: object) -> None:
        with self._lock:
            seen = self.seen.setdefault(job_id, set())
            if question is not None:
                self.questions[job_id] = json.dumps(question, sort_keys=True)
            if answer is not None:
                seen.add(json.dumps(answer, sort_keys=True))


def _without_ids(answer: dict[str, Any]) -> dict[str, Any]:
    """Return what is the same of an answer whoever asks, and whenever."""
    return answer | {"timings_ms": None, "id": None, "page": None}


def make_questions(count: int, chance: random.Random) -> list[dict[str, Any]]:
    """Make questions, about a fifth of which were asked before."""
    questions: list[dict[str, Any]] = []
    for _ in range(count):
        if questions and chance.random() < 0.2:
            questions.append(chance.choice(questions))
            continue
        job = {
            "model": {"source": "torchvision", "name": chance.choice(MODELS)},
            "input": {"shape": [3, 64, 64]},
            "batch_size": chance.randint(1, 64),
            "iterations": 1,
        }
        questions.append({"job": job, "gpu": chance.choice(GPUS)})
    return questions


def run_round(whole: Whole, num_jobs: int, kills: Sequence[str], seed: int) -> Round:
    """Ask all questions while processes are killed, in that order; return when all is over."""
    chance = random.Random(seed)
    result = Round(num_jobs=num_jobs, kills=dict.fromkeys(KINDS, 0))
    client = _Client(whole, result)
    questions = make_questions(num_jobs, chance)
    start = time.monotonic()
    killer = threading.Thread(target=_kill, args=(whole, list(kills), chance.random(), result))
    askers = [
        threading.Thread(target=_post_all, args=(client, questions[number::_NUM_CLIENTS], number))
        for number in range(_NUM_CLIENTS)
    ]
    for thread in [killer, *askers]:
        thread.start()
    for thread in [killer, *askers]:
        thread.join()
    _follow(client, result)
    _check(client, result)
    result.seconds = time.monotonic() - start
    return result


def _post_all(client: _Client, questions: Sequence[dict[str, Any]], seed: int) -> None:
    chance = random.Random(seed)
    for question in questions:
        client.post(question, wait=chance.choice((0, 0, 5)))
        time.sleep(chance.random() * 0.5)


def _kill(whole: Whole, kinds: list[str], seed: float, result: Round) -> None:
    chance = random.Random(seed)
    for kind in kinds:
        time.sleep(chance.random() * 2.5)
        result.kills[kind] += whole.kill(kind, chance, seconds=20)


def _follow(client: _Client, result: Round) -> None:
    """Read what is open until nothing is; a job that hangs is a failure."""
    open_jobs = {job_id for job_id, seen in client.seen.items() if not seen}
    last_end = time.monotonic()
    while open_jobs:
        for job_id in sorted(open_jobs):
            state = client.read(job_id)["state"]
            if state in ("queued", "running"):
                continue
            open_jobs.discard(job_id)
            last_end = time.monotonic()
            if state != "done":
                result.failures.append(f"{job_id}: {client.read(job_id)['error']}")
        if time.monotonic() - last_end > BOUND_SECONDS:
            result.failures.extend(f"{job_id}: hangs" for job_id in open_jobs)
            return


def _check(client: _Client, result: Round) -> None:
    """Read every job once more: done, and the answer is the one that was given all the time."""
    result.num_distinct = len({*client.questions.values(), *client.given})
    result.answers |= client.given
    ends: list[datetime] = []
    for job_id, seen in client.seen.items():
        record = client.read(job_id)
        result.num_attempts_more += record["attempts"] - 1
        if record["state"] != "done" or len(seen) != 1:
            result.failures.append(f"{job_id}: {record['state']}, {len(seen)} answers")
        else:
            result.answers[client.questions[job_id]] = _without_ids(record["result"])
            ends.append(datetime.fromisoformat(record["finished_at"]))
            took = ends[-1] - datetime.fromisoformat(record["created_at"])
            result.longest_job_seconds = max(result.longest_job_seconds, took.total_seconds())
    ends.sort()
    stalls = ((after - before).total_seconds() for before, after in pairwise(ends))
    result.longest_stall_seconds = max(stalls, default=0.0)
