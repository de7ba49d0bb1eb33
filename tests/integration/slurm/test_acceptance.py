"""The figures that a Slurm gate must reach, set up as the page says; ``make acceptance-slurm``.

With real accounts, the releaser and the broker. On a quiet machine: what is new is refused at first
sight only if memgate answers while the client waits. Each test prints what it measured.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.integration.slurm.documented import (
    GPU,
    RESNET,
    Documented,
    documented,
    say,
    watch_controller,
)
from tests.integration.slurm.jobs import LARGE, NEEDS, SMALL, never_seen
from tests.integration.slurm.rehearsing import FITS, make_project, train
from tests.integration.slurm_lab import Ran, SlurmLab, needs_accounting
from tests.integration.slurm_servers import Gate
from tests.running import wait_until

pytestmark = [*NEEDS, needs_accounting, pytest.mark.slow]

WITH_ACCOUNTING = WITH_DEFAULTS = True

#: rows of a batch; the jobs that are rehearsed have the lab's other GPU
TOO_LARGE_FOR_A100 = "400000"


@pytest.fixture
def setup(lab: SlurmLab, gate: Gate, cache: Path) -> Iterator[Documented]:
    """Set Slurm up as the page says."""
    with documented(lab, gate, cache) as setup:
        yield setup


def test_twenty_new_jobs_that_do_not_fit_are_refused_one_by_one(setup: Documented) -> None:
    """At least 19 of them by sbatch itself, and of those no job exists."""
    before = len(setup.jobs())
    ran = [setup.submit(never_seen(RESNET)) for _ in range(20)]

    refused = sum(one.status != 0 for one in ran)
    slowest = max(one.seconds for one in ran)
    say(f"{refused} of 20 refused, sbatch took {slowest:.1f} s at the most")
    assert refused >= 19
    assert len(setup.jobs()) - before == 20 - refused
    wait_until(lambda: len(setup.audit()) >= 20, "the audit", 60)
    records = [one for one in setup.audit() if one["done"] == "refused"]
    assert len(records) == refused
    assert {(one["user"], one["account"], one["qos"]) for one in records} == {
        ("nobody", "lab1", "normal")
    }


def test_twenty_that_bypass_the_client_do_not_start_before_their_verdict(
    setup: Documented,
) -> None:
    """Each is refused, or held and followed to its end: canceled, or started by its timer."""
    ran = [setup.submit_bypassing(never_seen(RESNET)) for _ in range(20)]

    held = [one.job for one in ran if one.status == 0]
    say(f"{20 - len(held)} of 20 refused, {len(held)} held: {dict(setup.follow(held))}")


def test_sixty_at_once_do_not_keep_the_controller_busy(setup: Documented) -> None:
    """Each is refused, or held and followed up; who asks Slurm meanwhile is answered."""
    with ThreadPoolExecutor(60) as pool:
        jobs = [pool.submit(setup.submit, never_seen(RESNET)) for _ in range(60)]
        longest = watch_controller(setup.lab, jobs)

    ran = [job.result() for job in jobs]
    held = [one.job for one in ran if one.status == 0]
    ends = dict(setup.follow(held))
    say(f"{60 - len(held)} of 60 refused, {len(held)} held: {ends}; sinfo {longest:.2f} s at most")
    assert longest < 2


@pytest.mark.parametrize("mode", ["warn", "audit"])
def test_two_hundred_mixed_jobs_where_nothing_is_enforced(setup: Documented, mode: str) -> None:
    """None is refused, held or canceled, and each is in the audit with its owner.

    Four of them are rehearsed beside the job, which starts meanwhile.
    """
    setup.lab.set_policy({"mode": mode, "on": {"undescribed": "rehearse"}})
    mistake = SMALL | {"batch_size": 0}
    lasting = f'[ -z "$SLURM_JOB_GPUS" ] || exec sleep 400\n{train("$1")}'

    def rehearsed(number: int) -> Ran:
        directory, script = make_project(setup.lab, lasting)
        size = TOO_LARGE_FOR_A100 if number % 2 else FITS
        options = ["--output=/dev/null", "--gres=gpu:a100:1", f"--chdir={directory}"]
        return setup.lab.run("sbatch", *options, str(script), size, nobody=True)

    def submit(number: int) -> Ran:
        if number < 4:
            return rehearsed(number)
        kinds = {
            0: lambda: setup.submit(SMALL),
            1: lambda: setup.submit(LARGE),
            2: lambda: setup.submit(mistake),
            3: lambda: setup.submit(never_seen(LARGE)),
            4: lambda: setup.lab.sbatch(GPU, "--comment=memgate:skip", nobody=True),
            5: lambda: setup.submit(LARGE, "--array=1-2"),
            6: lambda: setup.submit(LARGE, user="games"),
            7: lambda: setup.submit(LARGE, "--account=lab7", "--qos=paying"),
        }
        return kinds[number % 8]()

    with ThreadPoolExecutor(2) as pool:
        ran = list(pool.map(submit, range(200)))

    assert [one.err for one in ran if one.status != 0] == []
    ours, lasting_jobs = ({str(one.job) for one in some} for some in (ran, ran[:4]))

    def recorded() -> list[dict[str, str]]:
        # jobs of the test before may still be followed up
        said = [one for one in setup.audit() if one["mode"] == mode]
        return [one for one in said if one["done"] == "admitted" or one["job"] in ours]

    def records(done: str) -> list[dict[str, str]]:
        return [one for one in recorded() if one["done"] == done]

    wait_until(lambda: len(records("admitted")) >= 200, "the audit", 120)
    wait_until(
        lambda: lasting_jobs <= {one["job"] for one in records("noted")}, "the rehearsals", 600
    )
    done = Counter(one["done"] for one in recorded())
    owners = Counter((one["user"], one["account"]) for one in records("admitted"))
    noted = Counter(one["decision"] for one in records("noted") if one["job"] in lasting_jobs)
    say(f"{mode}: 200 let in, audit {dict(done)}, owners {dict(owners)}, rehearsed {dict(noted)}")
    assert set(done) == {"admitted", "noted"}
    assert len(records("admitted")) == 200
    assert set(owners) == {("nobody", "lab1"), ("games", "lab7"), ("nobody", "lab7")}
    assert noted["reject"] >= 1
    queue = setup.jobs()
    jobs = [queue[one.job] for one in ran if one.job in queue]
    assert [job["job_id"] for job in jobs if job["priority"] == 0] == []
    assert "CANCELLED" not in {job["job_state"] for job in jobs}
    assert any(job["job_state"] == "RUNNING" for job in jobs if str(job["job_id"]) in lasting_jobs)
