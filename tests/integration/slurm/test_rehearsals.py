"""Jobs without a description are run once without a GPU at a real Slurm, and that decides."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.integration.slurm.jobs import NEEDS
from tests.integration.slurm.rehearsing import FITS, TOO_LARGE, Rehearsing, train

pytestmark = NEEDS


def test_a_job_that_does_not_fit_is_canceled_before_it_starts(rehearsing: Rehearsing) -> None:
    """Without a word of its owner; nothing is written, and nothing of it is left."""
    writes = "echo new > made.txt; rm job.sh; sbatch job.sh; "
    job = rehearsing.submit(writes + train("$1"), argument=TOO_LARGE)
    before = rehearsing.contents()
    assert "nobody has described this job: it is run once without a GPU" in rehearsing.lab_said

    record = rehearsing.settle(job)

    assert record["decision"] == "reject", rehearsing.said
    assert rehearsing.lab.job(job)["job_state"] == "CANCELLED"
    assert rehearsing.lab.job(job)["nodes"] == ""
    assert rehearsing.contents() == before
    assert rehearsing.processes() == []


@pytest.mark.slow
def test_a_job_that_fits_is_released_and_not_run_again(rehearsing: Rehearsing) -> None:
    """GIVEN the same job once more, THEN what is known decides; GIVEN other code, it does not."""
    job = rehearsing.submit(train(FITS))
    record = rehearsing.settle(job)
    assert record["decision"] in ("admit", "uncertain"), rehearsing.said
    rehearsing.lab.wait_for(job, "RUNNING", 60)

    again = rehearsing.resubmit()
    rehearsing.look()

    assert rehearsing.lab.record(again)["id"] == record["id"]
    assert sum("rehearsed by job" in line for line in rehearsing.said) == 1


@pytest.mark.slow
def test_a_rehearsal_that_slurm_does_not_take_is_not_tried_again(rehearsing: Rehearsing) -> None:
    """GIVEN a companion that needs more than any node has, THEN the job is let in unmeasured."""
    rehearsing.run_in(replace(rehearsing.place, num_cpus=1000))
    job = rehearsing.submit(train(TOO_LARGE))
    before = rehearsing.num_jobs_of_nobody()
    record = rehearsing.settle(job)
    rehearsing.look()

    assert record["decision"] == "uncertain"
    assert "its rehearsal cannot be submitted: " in str(record["why"])
    assert rehearsing.num_jobs_of_nobody() - before <= 1
    rehearsing.lab.wait_for(job, "RUNNING", 60)
    assert rehearsing.lab.run("squeue", "-h", "-u", "nobody", "-t", "PENDING").out == ""


@pytest.mark.slow
def test_beside_a_job_that_is_not_held(rehearsing: Rehearsing) -> None:
    """In warn mode the job starts at once; who leaves the rehearsal out is counted."""
    rehearsing.lab.set_policy({"mode": "warn", "on": {"undescribed": "rehearse"}})
    job = rehearsing.submit("sleep 100; exit 0")
    skipped = rehearsing.submit("exit 0", "--comment=memgate:skip")

    rehearsing.lab.wait_for(job, "RUNNING")
    assert rehearsing.lab.record(skipped) is None
    assert rehearsing.lab.audited()[-1]["decision"] == "skipped"
    assert rehearsing.lab.record(job)["mode"] == "warn"
