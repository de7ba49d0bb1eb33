"""The audit: what gates decided, in a real Valkey, through the API and the command line."""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from fastapi.testclient import TestClient
from redis import Redis

from memgate.audit import AuditEntry
from memgate_service.http.app import create_app
from memgate_service.settings import ServiceSettings
from memgate_worker.queue.audit_log import AuditLog
from memgate_worker.queue.settings import QueueSettings

DAY = 24 * 3600
NOW = time.time()


def make_entry(number: int = 1, **fields: Any) -> AuditEntry:
    """Make a record; a test says what it is about."""
    usual: dict[str, Any] = {
        "id": f"record-{number:06}",
        "at": NOW - 1000 + number,
        "gate": "slurm",
        "user": "ada",
        "account": "lab",
        "partition": "debug",
        "decision": "reject",
        "mode": "enforce",
        "done": "refused",
    }
    return AuditEntry.model_validate(usual | fields)


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    """Connect to a Valkey of its own."""
    with Redis.from_url(redis_url) as redis:
        yield redis


@pytest.fixture
def log(redis: Redis, redis_url: str) -> AuditLog:
    """Make an empty audit."""
    return AuditLog(redis, QueueSettings(redis_url=redis_url))


def _keys(redis: Redis) -> set[str]:
    return {key.decode() for key in redis.keys("memgate:audit*")}  # type: ignore[union-attr]


def test_records_are_found_by_what_they_say(log: AuditLog) -> None:
    """By time, user, account, namespace, partition and decision, and by all of them together."""
    log.add(
        [
            make_entry(1),
            make_entry(2, user="bob"),
            make_entry(3, user="bob", decision="admit", done="admitted"),
            make_entry(4, gate="kubernetes", namespace="team-a", partition="", account=""),
        ]
    )

    def found(**wanted: Any) -> list[int]:
        return [int(entry.id[-1]) for entry in log.read(**wanted).entries]

    assert found() == [4, 3, 2, 1]
    assert found(user="bob") == [3, 2]
    assert found(user="bob", decision="reject") == [2]
    assert found(namespace="team-a") == [4]
    assert found(account="lab", done="refused") == [2, 1]
    assert found(since=make_entry(3).at) == [4, 3]
    assert found(until=make_entry(2).at) == [2, 1]
    assert found(partition="nowhere") == []


def test_a_record_that_is_sent_twice_counts_once(log: AuditLog) -> None:
    """A gate that does not know whether it arrived sends it again."""
    assert [log.add([make_entry(1), make_entry(2)]), log.add([make_entry(2)])] == [2, 0]

    (totals,) = log.totals([time.strftime("%Y-%m-%d", time.gmtime())]).values()
    assert totals == {"slurm:debug:reject:enforce:refused": 2}


def test_pages_show_every_record_once(log: AuditLog) -> None:
    """Also those of one second."""
    log.add([make_entry(number, at=NOW) for number in range(25)])
    seen: list[str] = []
    start = ""
    while True:
        page = log.read(count=10, start=start)
        seen += [entry.id for entry in page.entries]
        start = page.next
        if not start:
            break

    assert len(seen) == len(set(seen)) == 25


def test_the_audit_is_bounded_by_age_and_number(redis: Redis, redis_url: str) -> None:
    """What is dropped leaves nothing behind; totals by the day stay."""
    settings = QueueSettings(redis_url=redis_url, audit_days=10, audit_max=5)
    log = AuditLog(redis, settings)
    old = make_entry(90, at=NOW - 11 * DAY, user="gone")
    log.add([old])
    log.add([make_entry(number, user=f"user{number}") for number in range(8)])

    kept = [entry.user for entry in log.read().entries]
    assert kept == ["user7", "user6", "user5", "user4", "user3"]
    assert not {"memgate:audit-user:gone", "memgate:audit-entry:record-000090"} & _keys(redis)
    assert "memgate:audit-user:user0" not in _keys(redis)
    assert sum(map(len, log.totals([_day(old.at)]).values())) == 1
    assert all(redis.ttl(key) > 0 for key in _keys(redis))


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at))


def test_names_are_replaced_or_erased(log: AuditLog, redis: Redis) -> None:
    """A pseudonym is the same for all records of a user; an erased name is found nowhere."""
    log.add([make_entry(number, user="ada", name="adas-job") for number in range(3)])
    log.add([make_entry(9, user="bob")])

    assert (log.rename_user("ada"), log.rename_user("bob", is_erased=True)) == (3, 1)

    (pseudonym,) = {entry.user for entry in log.read(account="lab").entries} - {""}
    assert pseudonym.startswith("user-")
    assert len(log.read(user=pseudonym).entries) == 3
    stored = b"".join(redis.mget(*(key for key in _keys(redis) if "entry" in key)))  # type: ignore[arg-type]
    assert not any(name in stored for name in (b"ada", b"bob"))
    assert not any(name in "".join(_keys(redis)) for name in ("ada", "bob"))


def test_names_that_users_make_up_do_not_fill_the_metrics(log: AuditLog) -> None:
    """A submission may name any partition: after some hundred, others count together."""
    log.add([make_entry(number, partition=f"made-up-{number}") for number in range(600)])

    (totals,) = log.totals([_day(time.time())]).values()
    assert totals["slurm:other:reject:enforce:refused"] == 100
    assert len(totals) == 501


@pytest.fixture
def client(redis_url: str) -> Iterator[TestClient]:
    """Ask a service."""
    with TestClient(create_app(ServiceSettings(redis_url=redis_url))) as client:
        yield client


def test_the_api_records_lists_counts_and_exports(
    client: TestClient, capfd: pytest.CaptureFixture[str]
) -> None:
    """From a gate's batch to a spreadsheet; each is a line of the log and a figure of metrics."""
    entries = [make_entry(1), make_entry(2, decision="undescribed", name="=1+1", done="admitted")]
    batch = {"entries": [entry.model_dump(exclude_defaults=True) for entry in entries]}

    assert client.post("/audit", json=batch).json() == {"stored": 2}

    listed = client.get("/audit", params={"user": "ada", "limit": 1}).json()
    assert [entry["id"] for entry in listed["entries"]] == ["record-000002"]
    rest = client.get("/audit", params={"user": "ada", "start": listed["next"]}).json()
    assert ([entry["id"] for entry in rest["entries"]], rest["next"]) == (["record-000001"], "")
    counted = client.get("/audit/counts", params={"by": "user", "decision": "undescribed"})
    assert counted.json() == {"counts": {"ada": 1}}
    rows = list(csv.DictReader(StringIO(client.get("/audit", params={"format": "csv"}).text)))
    assert [row["name"] for row in rows] == ["'=1+1", ""]
    metrics = client.get("/metrics").text
    assert 'memgate_decisions_total{decision="undescribed",done="admitted",gate="slurm"' in metrics
    assert '"event":"decision"' in capfd.readouterr().err
