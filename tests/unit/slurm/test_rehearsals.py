"""Which jobs are rehearsed when, with what, and what their results lead to."""

from __future__ import annotations

import base64
import json
import struct
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from memgate_service.admission.slurm.commands import SlurmError
from memgate_service.admission.slurm.rehearsals.companion import (
    Errand,
    do_errand,
    read_errand,
    write_script,
)
from memgate_service.admission.slurm.rehearsals.job_files import JobFiles, read_files
from memgate_service.admission.slurm.rehearsals.known import KnownResults, make_key
from memgate_service.admission.slurm.rehearsals.owners import digest_as
from memgate_service.admission.slurm.rehearsals.planning import Todo, plan
from memgate_service.admission.slurm.rehearsals.queue import Queue, WaitingJob, read_rehearsals
from memgate_service.admission.slurm.rehearsals.starting import (
    CompanionPlace,
    find_gpu,
    make_request,
    slurm_variables,
)
from memgate_worker.rehearsal.request import Rehearsal, RehearsalRequest

NOW = 1_000_000


def job(number: int, *, user: int = 7, state: str = "PENDING", **record: Any) -> dict[str, Any]:
    """Return a job that waits for a rehearsal, as squeue writes it."""
    said = {
        "decision": "rehearsal",
        "gpu": "t4",
        "gpus": 1,
        "held": True,
        "timer": NOW + 180,
        "late": "reject",
    }
    return {
        "job_id": number,
        "job_state": state,
        "submit_time": NOW,
        "priority": 1,
        "user_id": user,
        "group_id": user,
        "current_working_directory": "/home/ada",
        "admin_comment": json.dumps({"memgate": said | record}),
    }


def companion(number: int, of: int, *, state: str = "RUNNING", user: int = 7) -> dict[str, Any]:
    """Return the job that rehearses another one."""
    record = {"decision": "companion", "of": of}
    said = job(number, user=user, state=state) | {"comment": '{"estimate": "e", "code": "c"}'}
    return said | {"admin_comment": json.dumps({"memgate": record})}


def read(*jobs: dict[str, Any]) -> Queue:
    """Read a queue."""
    return read_rehearsals(json.dumps({"jobs": jobs}))


def todos(*jobs: dict[str, Any], now: float = NOW, most: int = 4) -> list[tuple[Todo, int]]:
    """Return what is to be done, and about which job."""
    found = []
    for step in plan(read(*jobs), now, most, 180):
        about = step.waiting.job.job_id if step.waiting else 0
        found.append((step.todo, about or (step.companion.job_id if step.companion else 0)))
    return found


def first(**record: Any) -> WaitingJob:
    """Return a job that waits."""
    return read(job(1, **record)).waiting[0]


def test_a_user_has_one_rehearsal_at_a_time_and_the_cluster_so_many() -> None:
    """The first that came is the first that is tried; others wait, or their timers end."""
    assert todos(job(1), job(2)) == [(Todo.START, 1)]
    assert todos(job(1), job(2, user=8), job(3, user=9), most=2) == [
        (Todo.START, 1),
        (Todo.START, 2),
    ]
    assert todos(job(1), companion(5, 9), job(9, user=7)) == []


def test_a_companion_that_has_ended_is_acted_on() -> None:
    """Whatever it says; one that still runs is waited for."""
    assert todos(job(1), companion(5, 1, state="COMPLETED")) == [(Todo.FINISH, 1)]
    assert todos(job(1), companion(5, 1)) == []
    result = read(companion(5, 1)).companions[0].result
    assert result is not None
    assert (result.estimate, result.code) == ("e", "c")


def test_nothing_is_held_beyond_its_timer() -> None:
    """A job whose time is over, or that has started, goes on unmeasured."""
    assert todos(job(1), companion(5, 1), now=NOW + 181) == [(Todo.GIVE_UP, 1)]
    assert todos(job(1, state="RUNNING")) == [(Todo.GIVE_UP, 1)]
    assert todos(job(1), now=NOW + 175) == []  # too late to begin
    beside = job(1, state="RUNNING", held=False, timer=0, mode="warn")
    assert todos(beside) == [(Todo.START, 1)]
    assert todos(beside, now=NOW + 200) == [(Todo.GIVE_UP, 1)]


def test_a_job_that_ended_before_anybody_looked_is_recorded() -> None:
    """By what its companion found, if that is known; not if its owner canceled it."""
    ended = job(1, state="COMPLETED") | {"nodes": "n1"}
    assert todos(ended) == [(Todo.GIVE_UP, 1)]
    assert todos(ended, companion(5, 1)) == [(Todo.GIVE_UP, 1)]
    assert todos(ended, companion(5, 1, state="COMPLETED")) == [(Todo.FINISH, 1)]
    assert todos(job(1, state="CANCELLED")) == []


def test_a_companion_of_a_job_that_is_gone_is_canceled() -> None:
    """Its owner has canceled the job."""
    assert todos(companion(5, 1)) == [(Todo.CANCEL, 5)]


def test_an_array_is_rehearsed_once() -> None:
    """Its tasks find the companion of the whole."""
    task = job(12) | {"array_job_id": 1, "array_task_string": "3-9"}
    waiting = read(task).waiting[0]

    assert (waiting.script_of, waiting.array_task) == (1, "3")
    assert todos(task, companion(5, 1)) == [(Todo.CANCEL, 5)]
    assert todos(job(1), task, companion(5, 1)) == []


def test_what_is_not_squeues_is_told() -> None:
    """And not taken for an empty queue."""
    with pytest.raises(SlurmError, match="something unexpected"):
        read_rehearsals('{"job": []}')


def test_a_jobs_own_script_and_variables_are_read(tmp_path: Path) -> None:
    """As slurmctld keeps them."""
    folder = tmp_path / "hash.3" / "job.13"
    folder.mkdir(parents=True)
    (folder / "script").write_bytes(b"#!/bin/sh\ntrue\n\0")
    (folder / "environment").write_bytes(struct.pack("I", 2) + b"A=1\0B=x=y\nz\0")

    files = read_files(tmp_path, 13)

    assert files == JobFiles(script="#!/bin/sh\ntrue\n", environment={"A": "1", "B": "x=y\nz"})
    with pytest.raises(SlurmError, match="job 14: its script cannot be read"):
        read_files(tmp_path, 14)


def test_what_decides_is_in_the_key() -> None:
    """Another batch size in a variable is another job; another terminal is not."""
    files = JobFiles(script="s", environment={"BATCH": "1", "TERM": "xterm"})
    key = make_key(first(), files, "code")

    def other(**changed: str) -> JobFiles:
        return JobFiles(script="s", environment=files.environment | changed)

    assert make_key(first(), other(TERM="vt100"), "code") == key
    different = [
        make_key(first(), other(BATCH="2"), "code"),
        make_key(first(), files, "other"),
        make_key(first(gpu="a100-40"), files, "code"),
        make_key(first(arguments=["--batch", "2"]), files, "code"),
    ]
    assert key not in different
    assert make_key(first(), files, "") == ""


def test_results_are_kept_for_a_month_and_a_broken_file_is_empty(tmp_path: Path) -> None:
    """In a file that outlives the program."""
    path = tmp_path / "known.json"
    KnownResults(path).add("key", "estimate", NOW)

    assert KnownResults(path).find("key", NOW + 86400) == "estimate"
    assert KnownResults(path).find("key", NOW + 31 * 86400) == ""
    assert KnownResults(path).find("", NOW) == ""
    path.write_text("[1]")
    assert KnownResults(path).find("key", NOW) == ""


def test_the_digest_of_files_changes_with_the_code(tmp_path: Path) -> None:
    """And is empty for a directory that cannot be read."""
    (tmp_path / "train.py").write_text("one")
    uid, gid = (one.st_uid for one in [tmp_path.stat()] * 2)
    before = digest_as(uid, gid, str(tmp_path), "python train.py", [])
    assert before == digest_as(uid, gid, str(tmp_path), "python train.py", [])

    (tmp_path / "train.py").write_text("other")

    after = digest_as(uid, gid, str(tmp_path), "python train.py", [])
    assert after not in ("", before)
    assert digest_as(uid, gid, str(tmp_path / "none"), "", []) == ""


def test_the_gpus_are_those_that_the_job_asked_for() -> None:
    """By a name or by a size, as the settings have it."""
    assert find_gpu(first(gpus=8, per_node=4).job.record) == {
        "name": "t4",
        "count": 8,
        "per_node": 4,
    }
    size = '{"memory_bytes": 5, "compute_capability": "8.0"}'
    assert find_gpu(first(gpu=size).job.record)["memory_bytes"] == 5


def test_a_rehearsal_has_the_jobs_own_environment() -> None:
    """And the variables that Slurm would give it; how much time it has is known."""
    files = JobFiles(script="s", environment={"MINE": "1", "SLURM_NTASKS": "9"})
    said = job(1, arguments=["a b"]) | {"tasks": 4, "node_count": 2, "tasks_per_node": 2}
    waiting = read(said).waiting[0]

    request = make_request(waiting, files, CompanionPlace(server="http://x"), 100)

    assert (request.arguments, request.seconds) == (["a b"], 85)
    assert request.environment["MINE"] == "1"
    assert request.environment["SLURM_NTASKS"] == "4"
    assert slurm_variables(waiting)["SLURM_NTASKS_PER_NODE"] == "2"


def test_nothing_of_the_owners_is_a_command_of_the_companion() -> None:
    """Whatever is in the script comes out as it was."""
    request = RehearsalRequest(
        script="END\nrm -rf /\n'$(x)'", directory="/", gpu={"name": "t4"}, arguments=["END"]
    )
    errand = Errand(request=request, server="http://x")
    text = write_script(errand, ["cat"], "/etc/slurm/slurm.conf")

    ran = subprocess.run(["sh"], input=text, capture_output=True, text=True, check=True)

    assert read_errand(ran.stdout.encode()) == errand
    assert base64.b64decode(ran.stdout) == msgspec.json.encode(errand)


def test_a_rehearsal_without_a_timeline_says_why(tmp_path: Path) -> None:
    """And memgate is not asked."""
    request = RehearsalRequest(script="", directory=str(tmp_path), gpu={"name": "t4"})
    errand = Errand(request=request, server="http://x")

    def connect(_: str, __: str) -> Any:
        raise AssertionError("nothing is asked")

    result = do_errand(errand, connect, lambda _: Rehearsal(why="it failed"))

    assert (result.estimate, result.why) == ("", "it failed")


def test_a_node_that_cannot_rehearse_says_why(tmp_path: Path) -> None:
    """Such as one where users may not run memgate's Python."""
    request = RehearsalRequest(script="", directory=str(tmp_path), gpu={"name": "t4"})

    def fail(_: RehearsalRequest) -> Rehearsal:
        raise PermissionError(13, "Permission denied", "/opt/memgate/bin/python")

    def connect(_: str, __: str) -> Any:
        raise AssertionError("nothing is asked")

    result = do_errand(Errand(request=request, server="http://x"), connect, fail)

    assert result.why.startswith("it cannot be rehearsed on its node: [Errno 13] Permission denied")


def test_code_that_changes_meanwhile_is_not_judged(tmp_path: Path) -> None:
    """What was run is not what would be run."""
    request = RehearsalRequest(script="", directory=str(tmp_path), gpu={"name": "t4"})

    def change(_: RehearsalRequest) -> Rehearsal:
        (tmp_path / "train.py").write_text("new")
        return Rehearsal(timeline=b"x")

    def connect(_: str, __: str) -> Any:
        raise AssertionError("nothing is asked")

    result = do_errand(Errand(request=request, server="http://x"), connect, change)

    assert result.why == "its code was changed while it was rehearsed"
