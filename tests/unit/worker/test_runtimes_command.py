"""``memgate runtimes``: list, install, remove."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.worker.programs import PIP_FAILED, Programs

NAME = "torch-2.14"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Programs:
    """Put what installs a runtime in place."""
    return Programs.put_in_place(tmp_path / "done", monkeypatch)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install into a folder of the test's own."""
    monkeypatch.setenv("MEMGATE_RUNTIMES_DIR", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.mark.parametrize("command", [(), ("list",)])
def test_runtimes_are_listed_with_how_to_get_them(
    run: Any, home: Path, command: tuple[str, ...]
) -> None:
    """For people with the command that installs one, for programs with the same rows."""
    assert f"install {NAME}: memgate runtimes install {NAME}\n" in run("runtimes", *command).out
    rows = json.loads(run("runtimes", *command, "--json").out)
    row = next(row for row in rows if row["name"] == NAME)
    assert {"name", "installed", "packages", "cudnn"} <= row.keys()
    assert (row["installed"], row["state"], row["cudnn"]) == (False, "absent", None)
    assert row["home"] == str(home / NAME)


def test_a_runtime_is_installed_and_removed(run: Any, programs: Programs, home: Path) -> None:
    """Each step is shown, then the time, the size and the place."""
    first = run("runtimes", "install", NAME)
    again = run("runtimes", "install")
    listed = run("runtimes")
    removed = run("runtimes", "remove", NAME)
    gone = run("runtimes", "remove", NAME)

    assert [ran.status for ran in (first, again, listed, removed, gone)] == [0] * 5
    assert f"{NAME}: takes 1.91 GiB in {home / NAME}" in first.err
    assert f"{NAME}: building the stand-ins" in first.err
    assert first.out.startswith(f"{NAME} is ready after 0 s: ")
    assert again.out == f"{NAME} is installed and up to date in {home / NAME}\n"
    assert "yes" in listed.out
    assert f"{NAME} is removed: " in removed.out
    assert gone.out == f"{NAME} is not installed in {home}\n"


def test_programs_get_json(run: Any, programs: Programs) -> None:
    """The row of the list, and what was done; nothing else is printed."""
    ran = run("runtimes", "install", NAME, "--json")

    said = json.loads(ran.out)
    assert said["installed"] is True
    assert said["changed"] is True
    assert said["disk_bytes"] > 0
    assert ran.err == ""


@pytest.mark.parametrize("command", ["install", "remove"])
def test_an_unknown_name_is_answered_with_a_near_one(run: Any, command: str) -> None:
    """It is the caller's mistake."""
    ran = run("runtimes", command, "torch-2.41")

    assert ran.status == 2
    assert NAME in ran.err


def test_a_failure_is_one_sentence(run: Any, programs: Programs) -> None:
    """And status 1: it is not the caller's."""
    programs.fails = {"install": PIP_FAILED}

    ran = run("runtimes", "install", NAME)

    assert ran.status == 1
    assert "ERROR: no such version" in ran.err
    assert "Traceback" not in ran.err


def test_the_list_says_what_is_in_each(run: Any, programs: Programs, home: Path) -> None:
    """For programs and for people: versions, size, where it comes from."""
    run("runtimes", "install", NAME)
    (home / "lab.toml").write_text(
        'description = "x"\nrequirements = "/jobs/lab.txt"\nrequirements_digest = "0"\n'
    )
    rows = {row["name"]: row for row in json.loads(run("runtimes", "--json").out)}

    ours, lab = rows[NAME], rows["lab"]
    assert (ours["torch"], ours["python"], ours["origin"]) == ("2.14.1", "3.11", "memgate")
    assert ours["stand_ins"] is True
    assert ours["disk_bytes"] > 0
    assert (lab["torch"], lab["state"], lab["origin"]) == (None, "absent", "/jobs/lab.txt")
    assert lab["num_packages"] == 0
    assert "lab comes from /jobs/lab.txt\n" in run("runtimes").out
    assert "lab is removed" in run("runtimes", "remove", "lab").out
    assert not (home / "lab.toml").exists()


@pytest.mark.parametrize(
    ("arguments", "want"),
    [
        (["--name", "lab"], "--name lab names what --requirements FILE makes"),
        (["lab", "--requirements", "r.txt"], "say --name lab"),
        (["--requirements", "/missing.txt"], "--requirements /missing.txt cannot be read"),
    ],
)
def test_names_and_files_are_not_mixed_up(run: Any, arguments: list[str], want: str) -> None:
    """It is the caller's mistake, and nothing is installed."""
    ran = run("runtimes", "install", *arguments)

    assert ran.status == 2
    assert want in ran.err


def test_without_a_cudnn_it_says_so(run: Any, programs: Programs) -> None:
    """Before anything is downloaded."""
    ran = run("runtimes", "install", "torch-2.6", "--with-cudnn")

    assert ran.status == 2
    assert "names no cuDNN" in ran.err
    assert programs.done == []


def test_extras_are_listed_with_how_to_get_them(run: Any, programs: Programs) -> None:
    """Those that are there, and for each that is not its purpose, its size and the command."""
    run("runtimes", "install", NAME)
    before = run("runtimes", "list").out
    added = run("runtimes", "install", NAME, "--with", "trl", "--json")
    after = run("runtimes", "list").out

    assert "add trl (the trainers of TRL, and datasets; " in before
    assert f" to {NAME}: memgate runtimes install {NAME} --with trl\n" in before
    assert "--with trl" not in after
    assert f"{NAME} has the extras trl\n" in after
    extras = {row["name"]: row for row in json.loads(added.out)["extras"]}
    assert extras["trl"]["installed"] is True
    assert extras["liger"]["installed"] is False
    assert extras["liger"]["needs"] == ["triton"]


def test_an_unknown_extra_is_answered_with_a_near_one(run: Any, programs: Programs) -> None:
    """Before anything is downloaded."""
    ran = run("runtimes", "install", NAME, "--with", "troton")

    assert ran.status == 2
    assert "the runtime has no such extra; did you mean 'triton'?" in ran.err
    assert programs.done == []
