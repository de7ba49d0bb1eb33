"""A real Prometheus looks at a real service: names, alarms, and every query of the dashboard."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote
from urllib.request import urlopen

import pytest
import yaml

from memgate.report import Estimate
from memgate_worker.queue.client import QueueClient
from memgate_worker.queue.settings import QueueSettings
from tests.admission import JOB, make_pod, make_review
from tests.bench.load import QUESTION, store_answer
from tests.parts import find_part
from tests.running import ROOT, answers, post, serving, wait_until
from tests.valkey import running_valkey

DEPLOY = ROOT / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "memgate.json").read_text())
EXPRESSIONS = [
    (panel["title"], target["expr"]) for panel in DASHBOARD["panels"] for target in panel["targets"]
]


def _part(program: str) -> Path:
    path = find_part(program)
    if path is None:
        pytest.skip(f"{program} is not here: make parts")
    return path


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service that has served requests, jobs, and outcomes; where it is."""
    logs = tmp_path_factory.mktemp("logs")
    with running_valkey() as url:
        store_answer(url)
        _count_as_workers_do(url)
        with serving(logs / "service.log", redis_url=url) as served:
            base = served.url
            for _ in range(3):
                status, _ = post(f"{base}/estimate", QUESTION)
                assert status == 200
            post(f"{base}/estimate", b"no JSON")
            answers(f"{base}/nowhere")
            review = json.dumps(make_review(make_pod(annotations={JOB: "{"})))
            assert post(f"{base}/webhooks/kubernetes/validate", review.encode())[0] == 200
            with urlopen(f"{base}/jobs") as page:
                job = json.load(page)["jobs"][0]
            said = Estimate.model_validate(job["result"])
            told = {"job": job["id"], "measured_peak_bytes": said.peak_bytes + 1}
            for outcome in (told, told | {"ran_out": True}):
                assert post(f"{base}/outcomes", json.dumps(outcome).encode())[0] == 201
            yield base


def _count_as_workers_do(url: str) -> None:
    """Count what workers count, without a runtime; ``test_service`` has the workers' own counts."""
    queue = QueueClient(QueueSettings(redis_url=url))
    for name, label in (
        ("jobs", "estimate:done"),
        ("jobs", "estimate:failed"),
        ("failures", "PROCESS_LOST"),
        ("verdicts", "admit:rtx-3060"),
        ("lost", "worker"),
        ("timelines", "no"),
        ("stage_seconds", "phantom:trace"),
        ("stage_jobs", "phantom:trace"),
    ):
        queue.store.count(name, label)
    queue.close()


@pytest.fixture(scope="module")
def prometheus(service: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus with our own configuration that has looked at the service twice."""
    program = _part("prometheus")
    home = tmp_path_factory.mktemp("prometheus")
    config = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"][0]["targets"] = [service.removeprefix("http://")]
    (home / "prometheus.yml").write_text(yaml.safe_dump(config))
    rules = (DEPLOY / "prometheus" / "memgate.rules.yml").read_text()
    (home / "memgate.rules.yml").write_text(rules)
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(program, f"--config.file={home / 'prometheus.yml'}"),
                *(f"--storage.tsdb.path={home / 'data'}",),
                "--web.listen-address=127.0.0.1:0",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        wait_until(lambda: _listens_at(home / "log") is not None, "Prometheus listens")
        base = f"http://{_listens_at(home / 'log')}"
        wait_until(lambda: answers(f"{base}/-/ready"), "Prometheus is ready")
        seen = 'count_over_time(up{job="memgate"}[1m]) > 2 and up == 1'
        wait_until(lambda: bool(_ask(base, seen)), "it has seen the service")
        yield base
    finally:
        process.terminate()
        process.wait(30)


def _listens_at(log: Path) -> str | None:
    """Return the address that Prometheus got, by its log."""
    found = re.search(r"Listening on.* address=(127\.0\.0\.1:\d+)", log.read_text())
    return found[1] if found else None


def _ask(base: str, expression: str) -> list[Any]:
    with urlopen(f"{base}/api/v1/query?query={quote(expression)}", timeout=10) as answer:
        document = json.load(answer)
    assert document["status"] == "success", document
    found: list[Any] = document["data"]["result"]
    return found


def _promtool(*arguments: str | Path, given: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [_part("promtool"), *arguments],
        input=given,
        cwd=DEPLOY / "prometheus",
        capture_output=True,
        check=False,
    )


def test_prometheus_has_nothing_to_say_about_our_names(service: str) -> None:
    """Counters end in _total, units are base units, everything has a help text."""
    with urlopen(f"{service}/metrics") as answer:
        text = answer.read()

    ran = _promtool("check", "metrics", given=text)

    assert (ran.returncode, ran.stdout + ran.stderr) == (0, b"")
    assert b"memgate_outcomes_total" in text


def test_the_alarms_are_rules_and_ring_when_they_should() -> None:
    """Each is silent while all is well, and rings when it is not."""
    for arguments in (
        ("check", "rules", "memgate.rules.yml"),
        ("check", "config", "prometheus.yml"),
        ("test", "rules", "memgate.rules.test.yml"),
    ):
        ran = _promtool(*arguments)
        assert ran.returncode == 0, ran.stdout + ran.stderr


@pytest.mark.parametrize(("title", "expression"), EXPRESSIONS)
def test_a_query_of_the_dashboard_finds_data(prometheus: str, title: str, expression: str) -> None:
    """Each panel shows something about a service that has served some requests."""
    expression = expression.replace("$__rate_interval", "1m")

    assert "$" not in expression
    assert _ask(prometheus, expression), title


def test_an_alarm_watches_only_what_is_measured(prometheus: str) -> None:
    """Every metric that a rule or a panel names is one that the service has."""
    rules = (DEPLOY / "prometheus" / "memgate.rules.yml").read_text()
    groups = yaml.safe_load(rules)["groups"]
    expressions = [rule["expr"] for group in groups for rule in group["rules"]]
    expressions += [expression for _, expression in EXPRESSIONS]
    names = set(re.findall(r"\bmemgate_\w+", " ".join(expressions)))

    assert len(names) > 15
    for name in names:
        assert _ask(prometheus, name), name
