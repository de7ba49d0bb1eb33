"""New jobs at a real Slurm, set up as the page says: refused at first sight, or held by a timer."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from memgate import Client
from tests.integration.slurm.jobs import LARGE, NEEDS, SMALL, never_seen, release
from tests.integration.slurm_lab import Ran, SlurmLab
from tests.integration.slurm_servers import Gate
from tests.running import wait_until

pytestmark = NEEDS

GPU = "--gres=gpu:t4:1"


@pytest.fixture
def client_key(lab: SlurmLab, gate: Gate) -> str:
    """Make the key that every user can read."""
    path = lab.home / "client.key"
    path.write_text(gate.key)
    return str(path)


@pytest.fixture
def bypassed(lab: SlurmLab) -> dict[str, str]:
    """Return an environment without the client's plugin, as any user can make it."""
    own = lab.home / "work" / "slurm.conf"
    text = (lab.etc / "slurm.conf").read_text()
    own.write_text(text.replace("CliFilterPlugins=lua", "CliFilterPlugins=none"))
    (own.parent / "gres.conf").write_text((lab.etc / "gres.conf").read_text())
    return {"SLURM_CONF": str(own)}


@pytest.fixture
def enforced(lab: SlurmLab) -> Iterator[None]:
    """Leave the policy as it was."""
    yield
    lab.set_policy({"mode": "enforce"})


def _submit_bypassing(lab: SlurmLab, environment: dict[str, str], job: object, *more: str) -> Ran:
    script = lab.home / "work" / f"own{time.monotonic_ns()}.sh"
    script.write_text(f"#!/bin/sh\n#MEMGATE {json.dumps(job)}\nexit 0\n")
    variables = [f"{name}={value}" for name, value in environment.items()]
    command = ["sbatch", "--output=/dev/null", GPU, *more, str(script)]
    return lab.run("env", *variables, *command, nobody=True)


def _make_mail_program(lab: SlurmLab) -> Path:
    program = lab.home / "mail"
    sent = lab.home / "mail.txt"
    program.write_text(f'#!/bin/sh\nprintf "%s\\n" "$2" "$3" > {sent}; cat >> {sent}\n')
    program.chmod(0o755)
    return program


def _why(lab: SlurmLab, job: int) -> str:
    """Ask as the owner of a job does."""
    program = [sys.executable, "-c", "from memgate_service.cli.main import main; main()"]
    return lab.run(*program, "slurm", "why", str(job)).out


def test_a_new_job_that_does_not_fit_is_refused_at_first_sight(
    lab: SlurmLab, submit: Callable[..., Ran], client_key: str
) -> None:
    """GIVEN the documented set-up, WHEN nobody has asked before, THEN sbatch fails, said once.

    The client waits, where that blocks nobody; the controller decides. On a machine so busy that
    a known answer takes the controller's half second, a job is held: another is tried.
    """
    for _ in range(4):
        ran = submit(never_seen(LARGE), client_key_file=client_key, client_seconds=100)
        if ran.status:
            break
        assert "it is held until that is known" in ran.err

    assert ran.status == 1, ran.err
    assert ran.err.count("this job does not fit on t4") == 1
    record = lab.audited()[-1]
    assert (record["user"], record["partition"]) == ("nobody", "debug")
    assert (record["decision"], record["done"], record["mode"]) == ("reject", "refused", "enforce")


def test_a_new_job_that_bypasses_the_client_does_not_start_before_its_verdict(
    lab: SlurmLab, gate: Gate, memgate: Client, bypassed: dict[str, str]
) -> None:
    """It is held by a start time, which its owner cannot change; the verdict cancels it.

    Its owner can ask why in both cases, and gets a mail about the second.
    """
    lab.set(url=gate.url, key_file=str(gate.key_file), hold_seconds=600)
    job = never_seen(LARGE)
    with gate.unanswered():
        ran = _submit_bypassing(lab, bypassed, job)
    record = lab.record(ran.job)
    lab.run("scontrol", "update", f"JobId={ran.job}", "StartTime=now", nobody=True)

    assert "it is held until that is known, or for a short time" in ran.err
    assert record["timer"] - time.time() > 30
    assert lab.job(ran.job)["start_time"] == record["timer"]
    assert "held by memgate until " in _why(lab, ran.job)
    memgate.estimate(job, {"name": "t4", "count": 1})
    said = release(lab, gate, "--notify", str(_make_mail_program(lab)))
    assert f"job {ran.job}: cancel: does not fit on t4" in said
    lab.wait_for(ran.job, "CANCELLED")
    assert lab.job(ran.job)["nodes"] == ""  # it never had one
    subject, user, *text = (lab.home / "mail.txt").read_text().splitlines()
    assert subject.startswith(f"Slurm Job_id={ran.job} Name=own")
    assert (subject.endswith(" canceled by memgate"), user) == (True, "nobody")
    assert text[0].startswith(f"memgate: job {ran.job} does not fit on t4: needs ")
    assert "canceled by memgate: does not fit on t4: needs " in _why(lab, ran.job)


def test_a_timer_that_ends_lets_the_job_start_and_it_is_followed_up(
    lab: SlurmLab, gate: Gate, memgate: Client, bypassed: dict[str, str]
) -> None:
    """Without any program of ours: Slurm starts it. Once there is a verdict, the audit has it."""
    lab.set(url=gate.url, key_file=str(gate.key_file), hold_seconds=2)
    job = never_seen(LARGE)
    with gate.unanswered():
        ran = _submit_bypassing(lab, bypassed, job)
        lab.wait_for(ran.job, "COMPLETED", 60)
    assert lab.record(ran.job)["decision"] == "pending"  # of an ended job Slurm changes nothing
    memgate.estimate(job, {"name": "t4", "count": 1})
    assert f"job {ran.job}: followed up after its end: does not fit on t4" in release(lab, gate)


def test_a_verdict_releases_a_timed_job_before_its_time(
    lab: SlurmLab, gate: Gate, memgate: Client, bypassed: dict[str, str]
) -> None:
    """An array as well; a start time that its owner asked for stays."""
    lab.set(url=gate.url, key_file=str(gate.key_file), hold_seconds=600)
    job = never_seen(SMALL)
    with gate.unanswered():
        ran = _submit_bypassing(lab, bypassed, job, "--array=1-2")
        later = _submit_bypassing(lab, bypassed, job, "--begin=now+1hour")
    wanted = lab.record(later.job)["begin"]
    memgate.estimate(job, {"name": "t4", "count": 1})
    release(lab, gate)

    def states() -> list[str]:
        jobs = json.loads(lab.run("squeue", "--json").out)["jobs"]
        return [one["job_state"] for one in jobs if ran.job in (one["job_id"], one["array_job_id"])]

    wait_until(lambda: states() == ["COMPLETED"] * 2, "the array", 60)
    assert abs(lab.job(later.job)["start_time"] - wanted) <= 1
    assert lab.record(later.job)["decision"] == "admit"


@pytest.mark.usefixtures("enforced", "known")
@pytest.mark.parametrize("mode", ["warn", "audit"])
def test_where_nothing_is_enforced_every_job_runs(
    lab: SlurmLab, submit: Callable[..., Ran], mode: str
) -> None:
    """Mistakes included; the audit has each of them with its owner."""
    lab.set_policy({"mode": mode})
    mistake = SMALL | {"batch_size": 0}
    before = len(lab.audited()) if lab.spool.exists() else 0
    ran = [submit(job) for job in (LARGE, mistake, SMALL)]
    bare = lab.sbatch(GPU, nobody=True)

    assert [one.status for one in (*ran, bare)] == [0] * 4
    for one in (*ran, bare):
        lab.wait_for(one.job, "COMPLETED")
    records = lab.audited()[before:]
    decisions = [(one["decision"], one["done"], one["user"], one["mode"]) for one in records]
    want = ["reject", "bad_spec", "admit", "undescribed"]
    assert decisions == [(decision, "admitted", "nobody", mode) for decision in want]
    assert [bool(one.err) for one in ran] == [mode == "warn"] * 3


def test_sixty_new_jobs_at_once_do_not_keep_the_controller_busy(
    lab: SlurmLab, gate: Gate, bypassed: dict[str, str], home: Path
) -> None:
    """Each is refused or held, and who asks Slurm meanwhile is answered."""
    lab.set(url=gate.url, key_file=str(gate.key_file))
    waits: list[float] = []
    with gate.unanswered(), ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(_submit_bypassing, lab, bypassed, never_seen(LARGE)) for _ in range(60)]
        while not all(job.done() for job in jobs):
            waits.append(lab.run("sinfo", "-h").seconds)
            time.sleep(0.2)

    ran = [job.result() for job in jobs]
    held = [lab.record(one.job)["timer"] > 0 for one in ran]
    assert held == [True] * 60
    print(f"sinfo took {max(waits):.2f} s at the most")  # noqa: T201
    assert max(waits) < 2
