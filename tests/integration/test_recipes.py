"""The recipes of docs/recipes.md, really followed: a server, its API, the real Ray and SkyPilot.

What needs Ray and SkyPilot is slow, and runs where they are: ``make test-recipes``.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from memgate_worker.runtimes.runtime import read_runtimes
from tests.integration.gates import Gate
from tests.running import (
    ROOT,
    PortTakenError,
    answers,
    free_port,
    plain_environment,
    retry_taken,
    running,
    serving,
    silent_port,
    wait_until,
)

EXAMPLES = ROOT / "deploy" / "examples"

#: an environment with Ray and SkyPilot; made by ``make test-recipes``
OTHERS = ROOT / "build" / "recipes" / "bin"

needs_runtime = pytest.mark.skipif(
    not read_runtimes()["torch-2.14"].is_installed,
    reason="runtime torch-2.14 is not built: make runtime",
)
needs_others = pytest.mark.skipif(
    not OTHERS.is_dir(), reason="Ray and SkyPilot are not here: make test-recipes"
)


@pytest.fixture
def server(redis_url: str, tmp_path: Path) -> Iterator[str]:
    """Start a worker and a service; return where the service is."""
    with (
        running("memgate_worker", tmp_path / "worker.log", redis_url=redis_url),
        serving(tmp_path / "service.log", redis_url=redis_url) as served,
    ):
        wait_until(lambda: answers(f"{served.url}/readyz"), "the service is ready", 120)
        yield served.url


def _run(*command: str | Path, **more: str) -> tuple[int, str, str]:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ran = subprocess.run(
        command,
        cwd=ROOT,
        env=plain_environment() | {"PATH": path, "PYTHONPATH": f"{ROOT}:{EXAMPLES}"} | more,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return ran.returncode, ran.stdout, ran.stderr


def test_the_request_for_curl_is_taken(gate: Gate) -> None:
    """By the API as it is, strictly."""
    body = (EXAMPLES / "request.json").read_bytes()
    answer = gate.client.post("/estimate", content=body, headers=_JSON)
    assert answer.status_code == 202, answer.text
    assert gate.client.get(answer.headers["Location"]).json()["state"] == "queued"


_JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize("name", ["resnet50.json", "gpt2.yaml"])
def test_the_job_specs_are_taken(gate: Gate, name: str) -> None:
    """By the API as they are."""
    job = yaml.safe_load((EXAMPLES / name).read_text())
    answer = gate.client.post("/estimate", json={"job": job, "gpu": "t4"})
    assert answer.status_code == 202, answer.text


@needs_runtime
def test_the_commands_for_a_shell_do_what_the_page_says(server: str) -> None:
    """One job is submitted, one is not; and curl says the same as memgate."""
    text = (ROOT / "docs" / "recipes.md").read_text()
    lines = re.findall(r"^\$ (.+)$", text, re.MULTILINE)
    assert len(lines) == 3

    said = [
        _run("bash", "-c", line.replace("http://127.0.0.1:8080", server), COLUMNS="200")
        for line in lines
    ]

    assert [out.splitlines()[-1] for _, out, _ in said] == [
        "submit it",
        "not submitted, status 3",
        "submit it",
    ]


@needs_runtime
@needs_others
@pytest.mark.slow
def test_ray_runs_what_fits_and_never_sees_what_does_not(server: str, tmp_path: Path) -> None:
    """On a node that has the GPU, with the estimate's id in hand."""
    train = tmp_path / "train.py"
    train.write_text("import os\nprint('estimate', os.environ['MEMGATE_ESTIMATE_ID'])\n")
    cluster, url = retry_taken(lambda: _start_ray(tmp_path))
    ray = {"MEMGATE_URL": server, "RAY_API_SERVER_ADDRESS": url}
    try:
        submit = (OTHERS / "python", EXAMPLES / "ray_submit.py")
        small = (*submit, EXAMPLES / "resnet50.json", "--accelerator", "T4", "--", "python", train)
        status, submission, said = _run(*small, **ray)
        assert status == 0, said
        assert said.startswith("admit: needs")

        def is_done() -> bool:
            out = _run(OTHERS / "ray", "job", "status", submission.strip(), **ray)[1]
            assert "failed" not in out.lower(), out
            return "succeeded" in out

        wait_until(is_done, "the job is done", 120)
        logs = _run(OTHERS / "ray", "job", "logs", submission.strip(), **ray)[1]
        assert re.search(r"estimate [0-9a-f]{32}", logs)

        large = (*submit, EXAMPLES / "gpt2.yaml", "--accelerator", "T4", "--", "python", train)
        status, submission, said = _run(*large, **ray)
        assert (status, submission) == (3, "")
        assert said.startswith("reject: needs")
        assert _run(OTHERS / "ray", "job", "list", **ray)[1].count("submission_id=") == 1
    finally:
        cluster.terminate()
        cluster.wait(60)


def _start_ray(home: Path) -> tuple[subprocess.Popen[bytes], str]:
    """Start a node of Ray's; return it and the URL of its dashboard."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        *(str(OTHERS / "ray"), "start", "--head", "--block", "--num-cpus=1", "--num-gpus=1"),
        *('--resources={"accelerator_type:T4": 1}', f"--port={free_port()}"),
        *("--node-ip-address=127.0.0.1", "--dashboard-host=127.0.0.1", f"--dashboard-port={port}"),
        *("--dashboard-agent-listen-port=0", f"--ray-client-server-port={free_port()}"),
        *("--min-worker-port=0", "--max-worker-port=0", "--disable-usage-stats"),
    ]
    with (home / "ray.log").open("wb") as log:
        cluster = subprocess.Popen(command, cwd=home, stdout=log, stderr=log)
    wait_until(lambda: cluster.poll() is not None or answers(f"{url}/api/version"), "Ray", 120)
    if cluster.poll() is not None:
        raise PortTakenError((home / "ray.log").read_text())
    return cluster, url


#: what SkyPilot does with a task before anything else, by its own code and its own configuration
_LAUNCH = """
import json, sys
import sky
from sky.server.requests.request_names import AdminPolicyRequestName
from sky.utils import admin_policy_utils

task = sky.Task.from_yaml_config(json.loads(sys.argv[1]))
try:
    dag, _ = admin_policy_utils.apply(task, AdminPolicyRequestName.CLUSTER_LAUNCH)
except sky.exceptions.UserRequestRejectedByPolicy as error:
    sys.exit(str(error))
names = sorted(name for one in dag.tasks[0].resources for name in one.accelerators)
print(json.dumps([names, dag.tasks[0].envs.get("MEMGATE_ESTIMATE_ID")]))
"""


@needs_runtime
@needs_others
@pytest.mark.slow
def test_skypilot_keeps_the_accelerators_that_fit(server: str, tmp_path: Path) -> None:
    """Of the example's three two; of one that does not fit none, and the task is refused."""
    (tmp_path / "sky.yaml").write_text("admin_policy: skypilot_policy.MemgatePolicy\n")
    task = yaml.safe_load((EXAMPLES / "skypilot.yaml").read_text())

    def launch(url: str = server, **resources: object) -> tuple[int, str, str]:
        asked = json.dumps(task | ({"resources": resources} if resources else {}))
        settings = {"SKYPILOT_GLOBAL_CONFIG": str(tmp_path / "sky.yaml"), "HOME": str(tmp_path)}
        return _run(OTHERS / "python", "-c", _LAUNCH, asked, MEMGATE_URL=url, **settings)

    status, out, err = launch()
    assert status == 0, err
    assert json.loads(out.splitlines()[-1]) == [["A100", "L4"], None]

    names, estimate = json.loads(launch(accelerators={"A100": 1, "T4": 1})[1].splitlines()[-1])
    assert names == ["A100"]
    assert re.fullmatch("[0-9a-f]{32}", estimate)

    status, _, err = launch(accelerators={"T4": 1})
    assert status == 1
    assert "memgate: T4: needs" in err
    assert "it fits on " in err

    with silent_port() as port:
        nobody = f"http://127.0.0.1:{port}"
        out = launch(nobody, accelerators={"T4": 1})[1]
    assert json.loads(out.splitlines()[-1]) == [["T4"], None]
