"""What a command in a sandbox sees of secrets, and of programs that act on a cluster."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from memgate_worker.rehearsal.code import digest_code
from memgate_worker.sandbox.level import Level
from memgate_worker.sandbox.programs import find_programs, write_programs
from memgate_worker.sandbox.sandbox import Sandbox
from memgate_worker.sandbox.secrets import DUMMY, secret_places, without_secrets


def test_secrets_become_dummies_and_other_variables_stay() -> None:
    """A job that only checks that there is a key goes on."""
    given = {
        "HF_TOKEN": "s",
        "WANDB_API_KEY": "s",
        "AWS_SECRET_ACCESS_KEY": "s",
        "DB_PASSWORD": "s",
        "PATH": "/bin",
        "TOKENIZERS_PARALLELISM": "0",
        "KEYBOARD": "us",
        "SSH_AUTH_SOCK": "/x",
    }

    seen = without_secrets(given)

    assert {name for name, value in seen.items() if value == DUMMY} == {
        *("HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "DB_PASSWORD"),
    }
    assert seen["TOKENIZERS_PARALLELISM"] == "0"
    assert "SSH_AUTH_SOCK" not in seen


def test_places_of_secrets_are_those_that_exist(tmp_path: Path) -> None:
    """Files and directories; what is not there needs no cover."""
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".netrc").touch()

    found = {path.name for path in secret_places(tmp_path) if path.is_relative_to(tmp_path)}

    assert found == {".ssh", ".netrc"}


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """Write the stand-ins."""
    write_programs(tmp_path / "programs")
    return tmp_path / "programs"


def run(program: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a stand-in."""
    environment = {"PATH": "/usr/bin:/bin"} | variables
    return subprocess.run(
        [program, *arguments], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["-n", "4"],
        ["--ntasks=4", "--gres", "gpu:1", "--exclusive"],
        ["-n4", "-N1", "--cpu-bind=none", "-l", "-u"],
        ["--mpi", "pmix", "--label", "--"],
    ],
    ids=" ".join,
)
def test_srun_runs_its_command_as_the_first_of_its_tasks(
    programs: Path, options: list[str]
) -> None:
    """Whatever options come before it."""
    ran = run(
        programs / "srun", *options, "sh", "-c", "echo $SLURM_PROCID $SLURM_NTASKS $1", "-", "x"
    )

    tasks = "4" if any("n" in one and "4" in "".join(options) for one in options) else "1"
    assert (ran.returncode, ran.stdout) == (0, f"0 {tasks} x\n"), ran.stderr


def test_srun_does_not_follow_what_it_cannot(programs: Path) -> None:
    """The script fails, and the rehearsal cannot tell."""
    assert run(programs / "srun", "--multi-prog", "conf").returncode == 1
    assert run(programs / "srun", "true", ":", "true").returncode == 1


def test_what_acts_on_the_cluster_does_nothing_and_succeeds(programs: Path) -> None:
    """A script that submits the next job goes on."""
    assert run(programs / "sbatch", "next.sh").stdout == "Submitted batch job 0\n"
    assert run(programs / "sbatch", "--parsable", "next.sh").stdout == "0\n"
    for name in ("scancel", "ssh", "salloc"):
        ran = run(programs / name, "x")
        assert (ran.returncode, ran.stderr) == (0, f"memgate: {name} does nothing in a rehearsal\n")
    ran = run(programs / "scontrol", "show", "hostnames", "node[1-4]")
    assert ran.stdout == "localhost\n"


def test_programs_are_found_where_a_job_finds_them(tmp_path: Path) -> None:
    """Each file once, behind links, too."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "sbatch").touch()
    (tmp_path / "link").symlink_to(tmp_path / "bin")
    path = f"{tmp_path}/bin:{tmp_path}/link:relative"

    found = [item for item in find_programs({"PATH": path}) if tmp_path in item[1].parents]

    assert len([one for one in found if one[0] == "sbatch"]) == len(found) == 1


def test_without_a_sandbox_a_command_is_what_it_is() -> None:
    """And a level that keeps nothing apart says so."""
    assert Sandbox(level=Level.NONE).command(["true"]) == ["true"]
    assert [level for level in Level if level.is_apart] == [Level.ROOT, Level.NAMESPACES]


def test_the_digest_of_code_is_of_what_a_job_may_read(tmp_path: Path) -> None:
    """Code beneath its directory, and files that it names; not environments and results."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "model.py").write_text("1")
    (tmp_path / "venv").mkdir()
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    (tmp_path / "data.bin").write_text("1")
    before = digest_code(tmp_path, "python -m pkg", [])

    (tmp_path / "venv" / "new.py").write_text("1")
    (tmp_path / "out.bin").write_text("1")
    assert digest_code(tmp_path, "python -m pkg", []) == before
    assert digest_code(tmp_path, "python -m pkg --data=data.bin", []) != before
    (tmp_path / "pkg" / "model.py").write_text("22")
    assert digest_code(tmp_path, "python -m pkg", []) not in ("", before)
    assert digest_code(tmp_path / "none", "", []) == ""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be somebody else for a moment")
def test_a_folder_that_the_owner_may_not_look_into_is_left_out(tmp_path: Path) -> None:
    """A PATH of somebody else's, such as root's, must not keep a job from being rehearsed."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    os.seteuid(65534)
    try:
        found = list(find_programs({"PATH": f"{closed}/bin"}))
    finally:
        os.seteuid(0)

    assert not [path for _, path in found if closed in path.parents]
