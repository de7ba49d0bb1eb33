"""One cold ``POST /estimate``, followed through all processes: docs/architecture.md is its map."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from memgate_worker.runtimes.runtime import DEFAULT_RUNTIME, read_runtimes
from tests.running import ROOT, answers, post, running, serving, wait_until

pytestmark = pytest.mark.skipif(
    not read_runtimes()[DEFAULT_RUNTIME].is_installed,
    reason=f"no runtime: memgate runtimes install {DEFAULT_RUNTIME}",
)

#: files that a reader must open at most
MOST_FILES = 25

#: what is behind a door counts as the door
DOORS = {
    "memgate/allocator/": "memgate/allocator/replay.py",
    "worker/memgate_worker/engines/phantom/": "worker/memgate_worker/engines/registry.py",
    "worker/memgate_worker/engines/host_client.py": "worker/memgate_worker/engines/registry.py",
    "worker/memgate_worker/engines/starter.py": "worker/memgate_worker/engines/registry.py",
    "worker/memgate_worker/engines/versions.py": "worker/memgate_worker/engines/identity.py",
    "worker/memgate_worker/queue/blobs.py": "worker/memgate_worker/queue/store.py",
    "worker/memgate_worker/queue/records.py": "worker/memgate_worker/queue/store.py",
}

#: middleware, settings, errors, metrics, units, logs: around every request
AROUND = re.compile(
    r"(middleware|protocol|rate_limits|serving|settings|alloc_conf|config|errors|metrics|cache_counter|units|logs|decision"
    r"|mistakes|near_names|variables|main|version)\.py$"
)

#: threads with a work of their own
BACKGROUND = re.compile(r"watchdog|listener|lease|report|heartbeat", re.IGNORECASE)

QUESTION = {
    "job": {
        "model": {"source": "torchvision", "name": "resnet18"},
        "input": {"shape": [3, 64, 64]},
        "batch_size": 4,
    },
    "gpu": "t4",
}


def _section(begin: str, end: str) -> str:
    text = (ROOT / "docs" / "architecture.md").read_text()
    return text.partition(begin)[2].partition(end)[0]


def _documented() -> tuple[list[str], set[str]]:
    """Return the files of the path in their order, and those that stand beside it."""
    steps = _section("## Follow one `POST /estimate`", "### Entered on the way")
    beside = _section("### Entered on the way, beside the path", "### After the answer")
    return _listed(steps), set(re.findall(r"`([\w/]+\.py)`", beside))


def _listed(steps: str) -> list[str]:
    return re.findall(r"^\d+\. `([\w/]+\.py)`", steps, re.MULTILINE)


def _name(file: str) -> str:
    """Return a file as the documents name it, or the door that it is behind."""
    name = str(Path(file).resolve().relative_to(ROOT))
    return next((door for prefix, door in DOORS.items() if name.startswith(prefix)), name)


def _entered(calls: Path, begin: float, end: float) -> Iterator[list[str]]:
    """Return the files that each process entered while the request ran, in their order."""
    for recorded in sorted(calls.glob("*.tsv")):
        names: list[str] = []
        for line in recorded.read_text().splitlines():
            parts = line.split("\t")
            if len(parts) != 4 or not begin <= float(parts[0]) <= end:
                continue
            if BACKGROUND.search(parts[1]) or AROUND.search(parts[2]):
                continue
            name = _name(parts[2])
            if name not in names:
                names.append(name)
        if names:
            yield names


@pytest.fixture(scope="module")
def entered(shared_redis_url: str, tmp_path_factory: pytest.TempPathFactory) -> list[list[str]]:
    """Ask a new question of a real service with a real worker, and record what both enter."""
    home = tmp_path_factory.mktemp("walk")
    calls = home / "calls"
    calls.mkdir()
    recorder = str(Path(__file__).with_name("recorder"))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", recorder)
        environment.setenv("RECORDED_CALLS", str(calls))
        with (
            running("memgate_worker", home / "w.log", redis_url=shared_redis_url),
            serving(home / "s.log", redis_url=shared_redis_url) as served,
        ):
            wait_until(lambda: answers(f"{served.url}/readyz"), "a worker", 180)
            begin = time.monotonic()
            status, body = post(
                f"{served.url}/estimate", json.dumps(QUESTION).encode(), Prefer="wait=60"
            )
            end = time.monotonic()
    assert status == 200, body
    return list(_entered(calls, begin, end))


def test_the_way_is_short() -> None:
    """A newcomer opens so many files, and each once."""
    path, beside = _documented()

    assert len(path) == len(set(path)) <= MOST_FILES
    assert not beside & set(path)


def test_every_file_on_the_way_is_on_the_map(entered: list[list[str]]) -> None:
    """What a request enters is in docs/architecture.md, and what is there is entered."""
    path, beside = _documented()
    seen = {name for names in entered for name in names}

    assert len(entered) == 2, "a service and a worker"
    assert sorted(seen - set(path) - beside) == []
    assert set(path) - seen == set()


def test_the_map_is_in_the_order_of_the_way(entered: list[list[str]]) -> None:
    """In each process, its files are first entered in the order in which they are listed.

    What both share, such as the job, is listed where it is read first.
    """
    steps = _section("## Follow one `POST /estimate`", "### Entered on the way")
    parts = [_listed(part) for part in steps.split("In a worker")]
    service, worker = sorted(entered, key=lambda names: parts[0][2] not in names)

    assert [name for name in service if name in parts[0]] == parts[0]
    assert [name for name in worker if name in parts[1]] == parts[1]
