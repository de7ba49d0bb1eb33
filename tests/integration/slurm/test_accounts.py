"""Accounts, QOS and users that are real: slurmdbd and MariaDB; the policy goes by them.

What is decided here needs no memgate: a job without a description, and one whose description is
wrong at first sight.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from typer.testing import CliRunner

from memgate_service.cli.main import app
from tests.integration.slurm_lab import SlurmLab, needs_accounting, needs_slurm
from tests.running import wait_until

pytestmark = [needs_slurm, needs_accounting]

WITH_ACCOUNTING = True

GPU = "--gres=gpu:t4:1"

#: as the page on policies has it, with the accounts of the lab
POLICY: dict[str, Any] = {
    "mode": "warn",
    "on": {"undescribed": "reject"},
    "exempt": [{"name": "operators", "account": "ops"}],
    "rules": [
        {"name": "trial", "qos": "trial", "mode": "audit"},
        {"name": "paying", "account": "lab7", "mode": "enforce"},
    ],
}

#: who submits, options, the account and QOS that Slurm gives the job, and the rule about it
CASES: dict[str, tuple[str, list[str], str, str, str]] = {
    "nothing said": ("nobody", [], "lab1", "normal", "cluster"),
    "a QOS": ("nobody", ["--qos=trial"], "lab1", "trial", "trial"),
    "an account": ("nobody", ["--account=lab7"], "lab7", "normal", "paying"),
    "an account before a QOS": (
        *("nobody", ["--account=lab7", "--qos=trial"]),
        *("lab7", "trial", "paying"),
    ),
    "another user's default account": ("games", [], "lab7", "normal", "paying"),
    "an exempt account": ("nobody", ["--account=ops"], "ops", "normal", "operators"),
}


@pytest.fixture
def ruled(lab: SlurmLab) -> Iterator[SlurmLab]:
    """Set the policy."""
    lab.set(url="http://127.0.0.1:9", client_seconds=0)
    lab.set_policy(POLICY)
    yield lab
    lab.set_policy({"mode": "enforce"})


@pytest.mark.parametrize("name", CASES)
def test_the_rule_is_that_of_the_account_and_the_qos(ruled: SlurmLab, name: str) -> None:
    """As Slurm gives them to the job; the audit has them, and which rule it was.

    ``memgate policy explain`` names the same.
    """
    user, options, account, qos, rule = CASES[name]
    ran = ruled.sbatch(GPU, *options, user=user)

    is_refused = rule == "paying"
    assert (ran.status != 0) is is_refused, ran
    assert ("need a description here" in ran.err) is (rule in ("paying", "cluster"))
    said = ruled.audited()[-1]
    assert (said["user"], said["account"], said["qos"], said["rule"]) == (user, account, qos, rule)
    assert _explain(ruled, said).startswith(f"{rule}: ")
    assert said["done"] == ("refused" if is_refused else "admitted")
    if not is_refused:  # what Slurm gave it in the end
        job = ruled.job(ran.job)
        assert (job["user_name"], job["account"], job["qos"]) == (user, account, qos)


def test_an_account_that_is_not_ones_own_exempts_nobody(ruled: SlurmLab) -> None:
    """The plugin believes the option, and Slurm itself refuses the job."""
    ran = ruled.sbatch(GPU, "--account=ops", user="games")

    assert ran.status != 0
    assert "Invalid account" in ran.err
    assert ruled.run("squeue", "-h", "--states=all", "--user=games", "--account=ops").out == ""


#: how a job is submitted, how its owner changes it, and whether that gets it past the policy
MOVES: dict[str, tuple[list[str], str, bool]] = {
    "from warn to enforce": ([GPU], "account=lab7", True),
    "from an exemption to enforce": ([GPU, "--account=ops"], "account=lab7", True),
    "from an exemption to warn": ([GPU, "--account=ops"], "account=lab1", False),
    "from enforce to a QOS that is only audited": ([GPU], "qos=trial", False),
    "a GPU afterwards, under enforce": (["--account=lab7"], "gres=gpu:t4:1", True),
    "a GPU afterwards, under warn": ([], "gres=gpu:t4:1", False),
    "no GPU at all": ([], "account=lab7", False),
}


@pytest.mark.parametrize("name", MOVES)
def test_a_job_is_not_moved_past_the_policy(ruled: SlurmLab, name: str) -> None:
    """What one rule lets in does not get under a stricter one; the audit has the attempt."""
    options, change, is_refused = MOVES[name]
    job = ruled.sbatch("--begin=now+1hour", *options, user="nobody").job
    before = len(ruled.audited()) if ruled.spool.exists() else 0

    ran = ruled.run("scontrol", "update", f"jobid={job}", change, user="nobody")

    assert (ran.status != 0) is is_refused, ran
    assert ("denied" in ran.err) is is_refused
    said = ruled.audited()[before:] if ruled.spool.exists() else []
    is_recorded = is_refused or "GPU afterwards" in name
    assert [one["done"] for one in said] == (
        ["refused" if is_refused else "admitted"] if is_recorded else []
    )
    assert all((one["job"], one["user"]) == (str(job), "nobody") for one in said)


def test_accounting_keeps_the_record_of_a_job(ruled: SlurmLab) -> None:
    """GIVEN a mistake where only warnings are given, THEN ``sacct`` has what was found."""
    ran = ruled.sbatch(GPU, head="#MEMGATE {", nobody=True)
    assert "otherwise it would be refused" in ran.err
    ruled.wait_for(ran.job, "COMPLETED")

    def kept() -> str:
        fields = "--format=Account,AdminComment"
        return ruled.run("sacct", "-n", "-P", "-X", f"--jobs={ran.job}", fields).out

    wait_until(lambda: "bad_spec" in kept(), "accounting", 30)
    assert kept().startswith("lab1|")


def _explain(lab: SlurmLab, said: dict[str, Any]) -> str:
    """Ask the command about a job in the audit."""
    who = [f"--{name}={said[name]}" for name in ("user", "account", "qos", "partition")]
    policy = str(lab.etc / "memgate.policy.json")
    ran = CliRunner().invoke(app, ["policy", "explain", policy, *who])
    assert ran.exit_code == 0, ran.output
    return ran.output
