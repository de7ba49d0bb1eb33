"""The figures that a Slurm gate must reach, set up as the page says; ``make acceptance-slurm``.

On a quiet machine: what is new is refused at first sight only if memgate answers while the client
waits. Each test prints what it measured.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.integration.slurm.jobs import LARGE, NEEDS, SMALL, never_seen
from tests.integration.slurm.test_first_sight import GPU, bypassed, client_key
from tests.integration.slurm_lab import Ran, SlurmLab
from tests.integration.slurm_servers import Gate

__all__ = ["bypassed", "client_key"]

pytestmark = [*NEEDS, pytest.mark.slow]


@pytest.fixture
def documented(lab: SlurmLab, gate: Gate, client_key: str) -> Iterator[SlurmLab]:
    """Set Slurm up as the page says: every setting that is not an address has its default."""
    lab.set(url=gate.url, key_file=str(gate.key_file), client_key_file=client_key)
    yield lab
    lab.set_policy({"mode": "enforce"})


def _submit(lab: SlurmLab, job: object, *options: str) -> Ran:
    return lab.sbatch(GPU, *options, head=f"#MEMGATE {json.dumps(job)}", nobody=True)


def _num_jobs(lab: SlurmLab) -> int:
    return len(json.loads(lab.run("squeue", "--json", "--states=all").out)["jobs"])


def test_twenty_new_jobs_that_do_not_fit_are_refused_one_by_one(documented: SlurmLab) -> None:
    """At least 19 of them by sbatch itself, and of those no job exists."""
    before = _num_jobs(documented)
    ran = [_submit(documented, never_seen(LARGE)) for _ in range(20)]

    refused = sum(one.status != 0 for one in ran)
    slowest = max(one.seconds for one in ran)
    print(f"{refused} of 20 refused, sbatch took {slowest:.1f} s at the most")  # noqa: T201
    assert refused >= 19
    assert _num_jobs(documented) - before == 20 - refused


def test_twenty_that_bypass_the_client_do_not_start_before_their_verdict(
    documented: SlurmLab, gate: Gate, bypassed: dict[str, str]
) -> None:
    """Each is refused, or held by a timer that Slurm itself keeps."""
    documented.environment.update(bypassed)
    try:
        ran = [_submit(documented, never_seen(LARGE)) for _ in range(20)]
    finally:
        documented.environment["SLURM_CONF"] = str(documented.etc / "slurm.conf")

    held = [one.job for one in ran if one.status == 0]
    states = {documented.job(number)["job_state"] for number in held}
    print(f"{20 - len(held)} of 20 refused, {len(held)} held")  # noqa: T201
    assert states <= {"PENDING"}
    assert all(documented.record(number)["timer"] > time.time() for number in held)


@pytest.mark.parametrize("mode", ["warn", "audit"])
def test_two_hundred_mixed_jobs_where_nothing_is_enforced(documented: SlurmLab, mode: str) -> None:
    """None is refused, held or canceled, and each is in the audit with its owner."""
    documented.set_policy({"mode": mode})
    mistake = SMALL | {"batch_size": 0}
    before = len(documented.audited()) if documented.spool.exists() else 0

    def submit(number: int) -> Ran:
        kind = number % 5
        if kind == 4:
            return documented.sbatch(GPU, nobody=True)
        jobs = [SMALL, LARGE, mistake, never_seen(LARGE)]
        return _submit(documented, jobs[kind])

    with ThreadPoolExecutor(2) as pool:
        ran = list(pool.map(submit, range(200)))

    refused = [one.err for one in ran if one.status != 0]
    assert refused == []
    records = documented.audited()[before:]
    assert len(records) == 200
    assert {one["user"] for one in records} == {"nobody"}
    assert {one["done"] for one in records} == {"admitted"}
    queue = json.loads(documented.run("squeue", "--json", "--states=all").out)["jobs"]
    ours = {one.job for one in ran}
    bad = [job["job_id"] for job in queue if job["job_id"] in ours and job["priority"] == 0]
    states = {one["job_state"] for one in queue if one["job_id"] in ours}
    print(f"{mode}: 200 let in, {len(records)} records, states {sorted(states)}")  # noqa: T201
    assert bad == []
    assert "CANCELLED" not in states
