"""Jobs that are held until memgate has an answer, on a real Slurm."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Callable

import pytest

from memgate import Client
from tests.integration.slurm.jobs import LARGE, NEEDS, SMALL, never_seen, release, release_command
from tests.integration.slurm_lab import Ran, SlurmLab
from tests.integration.slurm_servers import Gate
from tests.running import wait_until

pytestmark = NEEDS

#: what an owner may try with a job that is held
TRICKS: list[list[str]] = [
    ["scontrol", "release", "{job}"],
    ["scontrol", "hold", "{job}"],
    ["scontrol", "uhold", "{job}"],
    ["scontrol", "requeue", "{job}"],
    ["scontrol", "requeuehold", "{job}"],
    ["scontrol", "resume", "{job}"],
    ["scontrol", "top", "{job}"],
    ["scontrol", "update", "JobId={job}", "Priority=1000"],
    ["scontrol", "update", "JobId={job}", "Nice=-100"],
    ["scontrol", "update", "JobId={job}", "AdminComment={{}}"],
    ["scontrol", "update", "JobId={job}", "Comment=nothing"],
    ["scontrol", "update", "JobId={job}", "Gres=gpu:a100:1"],
    ["scontrol", "update", "JobId={job}", "Partition=debug"],
    ["scontrol", "update", "JobId={job}", "StartTime=now"],
]


def test_a_held_job_is_released_by_its_answer_alone(
    lab: SlurmLab, gate: Gate, memgate: Client, submit: Callable[..., Ran]
) -> None:
    """GIVEN a question that is new, THEN the job is held, its owner cannot change that, AND once

    there is an answer the releaser lets it run.
    """
    job = never_seen(SMALL)
    with gate.unanswered():
        ran = submit(job, on_unanswered="hold", hold_seconds=0)

    assert "it is held until that is known" in ran.err
    record = lab.record(ran.job)
    assert (record["decision"], record["held"]) == ("pending", True)
    for trick in TRICKS:
        lab.run(*(word.format(job=ran.job) for word in trick), nobody=True)
        assert lab.job(ran.job)["priority"] == 0, trick
        assert lab.record(ran.job) == record, trick

    memgate.estimate(job, {"name": "t4", "count": 1})
    assert f"job {ran.job}: release" in release(lab, gate)
    lab.wait_for(ran.job, "COMPLETED")
    assert lab.record(ran.job)["decision"] == "admit"
    assert lab.record(ran.job)["id"] == record["id"]


@pytest.mark.parametrize(("option", "state"), [("cancel", "CANCELLED"), ("hold", "PENDING")])
def test_a_held_job_that_does_not_fit_never_runs(
    lab: SlurmLab,
    gate: Gate,
    memgate: Client,
    submit: Callable[..., Ran],
    option: str,
    state: str,
) -> None:
    """It is canceled, or left to an administrator; its record says why."""
    job = never_seen(LARGE)
    with gate.unanswered():
        ran = submit(job, on_unanswered="hold", hold_seconds=0)
    memgate.estimate(job, {"name": "t4", "count": 1})

    release(lab, gate, "--rejected", option)

    lab.wait_for(ran.job, state)
    assert lab.run("scontrol", "release", str(ran.job), nobody=True).status == 1
    record = lab.record(ran.job)
    assert (record["decision"], record["held"]) == ("reject", True)
    assert " fits, the largest that does" in record["why"]
    assert lab.job(ran.job)["job_state"] == state


@pytest.mark.parametrize("option", ["cancel", "hold"])
@pytest.mark.usefixtures("known")
def test_a_part_that_fits_does_not_release_the_others(
    lab: SlurmLab, gate: Gate, option: str
) -> None:
    """GIVEN a held job of two parts, of which one fits, THEN the other never runs."""
    lab.set(url="http://127.0.0.1:9", on_unanswered="hold", hold_seconds=0)
    parts = [f"--comment=memgate:{json.dumps(job)}" for job in (SMALL, LARGE)]
    gpu = "--gres=gpu:t4:1"
    ran = lab.run(
        *("sbatch", "--output=/dev/null", "--wrap=true", gpu, parts[0], ":", gpu, parts[1]),
        nobody=True,
    )

    said = release(lab, gate, "--rejected", option)

    records = [lab.record(ran.job + part) for part in (0, 1)]
    assert [record["decision"] for record in records] == ["admit", "reject"]
    assert lab.job(ran.job + 1)["priority"] == 0
    if option == "cancel":
        assert lab.job(ran.job + 1)["job_state"] == "CANCELLED"
    assert f"job {ran.job + 1}: {option}: " in said


def test_an_array_is_released_as_a_whole(
    lab: SlurmLab, gate: Gate, memgate: Client, submit: Callable[..., Ran]
) -> None:
    """One question, one answer, all its tasks; none of them can be let in by its owner."""
    job = never_seen(SMALL)
    with gate.unanswered():
        ran = submit(job, "--array=1-3", on_unanswered="hold", hold_seconds=0)
    for trick in (["release", f"{ran.job}_2"], ["update", f"JobId={ran.job}_2", "Priority=9"]):
        assert lab.run("scontrol", *trick, nobody=True).status == 1
    memgate.estimate(job, {"name": "t4", "count": 1})

    release(lab, gate)

    def states() -> list[str]:
        return [
            one["job_state"]
            for one in json.loads(lab.run("squeue", "--json").out)["jobs"]
            if ran.job in (one["job_id"], one["array_job_id"])
        ]

    wait_until(lambda: states() == ["COMPLETED"] * 3, "the array", 30)


def test_what_its_owner_holds_stays_held(
    lab: SlurmLab, gate: Gate, memgate: Client, submit: Callable[..., Ran]
) -> None:
    """``sbatch --hold``: memgate's hold ends, the owner's own does not."""
    job = never_seen(SMALL)
    with gate.unanswered():
        ran = submit(job, "--hold", on_unanswered="hold", hold_seconds=0)
    assert lab.run("scontrol", "release", str(ran.job), nobody=True).status == 1
    memgate.estimate(job, {"name": "t4", "count": 1})

    release(lab, gate)

    assert lab.job(ran.job)["priority"] == 0
    assert lab.run("scontrol", "release", str(ran.job), nobody=True).status == 0
    lab.wait_for(ran.job, "COMPLETED")


@pytest.mark.usefixtures("known")
def test_what_an_administrator_holds_stays_held(lab: SlurmLab, gate: Gate) -> None:
    """GIVEN a job that memgate and an administrator hold, THEN only memgate's hold ends."""
    lab.set(url="http://127.0.0.1:9", on_unanswered="hold", hold_seconds=0)
    ran = lab.sbatch("--gres=gpu:t4:1", head=f"#MEMGATE {json.dumps(SMALL)}", nobody=True)
    assert lab.run("scontrol", "hold", str(ran.job)).status == 0

    release(lab, gate)

    assert lab.record(ran.job)["decision"] == "admit"
    assert lab.run("scontrol", "release", str(ran.job), nobody=True).status == 1
    assert lab.job(ran.job)["priority"] == 0
    assert lab.run("scontrol", "release", str(ran.job)).status == 0
    lab.wait_for(ran.job, "COMPLETED")


def test_a_job_that_memgate_never_heard_of_is_asked_about_later(lab: SlurmLab, gate: Gate) -> None:
    """GIVEN memgate was down when it was submitted, THEN it is released once there is an answer.

    By the releaser as it runs beside slurmctld, which Ctrl-C ends.
    """
    lab.set(url="http://127.0.0.1:9", on_unanswered="hold", hold_seconds=0)
    head = f"#MEMGATE {json.dumps(never_seen(SMALL))}"
    ran = lab.sbatch("--gres=gpu:t4:1", head=head, nobody=True)
    assert lab.record(ran.job)["held"]

    with subprocess.Popen(
        release_command(gate, "--every", "0.2"),
        env=lab.environment,
        # of a shell's background job it would inherit that Ctrl-C is ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as releaser:
        try:
            lab.wait_for(ran.job, "COMPLETED", 60)
            releaser.send_signal(signal.SIGINT)
            releaser.wait(30)
        finally:
            releaser.kill()

    assert releaser.returncode == 0
    assert lab.record(ran.job)["decision"] == "admit"
