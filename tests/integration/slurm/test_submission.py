"""Jobs come to a real Slurm, and a real memgate says whether they fit."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from memgate import Client
from memgate.errors import MemgateError
from memgate_service.admission.slurm.outcomes import Ledger, Reporter
from tests.conftest import DATA
from tests.integration.slurm.jobs import LARGE, NEEDS, SMALL, never_seen, release
from tests.integration.slurm_lab import Ran, SlurmLab
from tests.integration.slurm_servers import Gate

pytestmark = NEEDS


@pytest.mark.usefixtures("known")
def test_a_job_that_fits_runs(lab: SlurmLab, submit: Callable[..., Ran]) -> None:
    """GIVEN a known answer, THEN it is let in at once, runs, and bears the estimate."""
    ran = submit(SMALL)

    assert "sbatch: memgate: this job fits on t4: needs " in ran.err
    lab.wait_for(ran.job, "COMPLETED")
    record = lab.record(ran.job)
    assert (record["decision"], record["gpu"]) == ("admit", "t4")
    assert 0 < record["needs"] < record["capacity"]
    assert len(record["id"]) == 32
    assert record["page"] == f"/ui/jobs/{record['id']}"


@pytest.mark.usefixtures("known")
def test_a_job_that_does_not_fit_is_refused(lab: SlurmLab, submit: Callable[..., Ran]) -> None:
    """With what its owner can do: a smaller batch, or a GPU of this cluster."""
    ran = submit(LARGE, public_url="https://memgate.example/")

    assert ran.status == 1
    lines = [line.removeprefix("sbatch: error: ") for line in ran.err.splitlines()]
    assert lines[0].startswith("memgate: this job does not fit on t4: needs ")
    assert lines[0].endswith(", t4 has 14.56 GiB")
    batch = re.fullmatch(r"memgate: batch size (\d+) fits, the largest that does", lines[1])
    assert batch is not None
    assert 0 < int(batch[1]) < LARGE["batch_size"]
    assert lines[2].startswith("memgate: as it is, it fits on ")
    assert lines[3] == "memgate: the smallest GPU here on which it fits: --gres=gpu:a100:1"
    assert lines[4].startswith("memgate: see https://memgate.example/ui/jobs/")
    assert len(lines) == 6


@pytest.mark.usefixtures("known")
def test_reject_may_be_told_only(lab: SlurmLab, submit: Callable[..., Ran]) -> None:
    """For who wants to watch before it counts."""
    ran = submit(LARGE, on_reject="admit")

    lab.wait_for(ran.job, "COMPLETED")
    assert "does not fit" in ran.err
    assert lab.record(ran.job)["decision"] == "reject"


@pytest.mark.usefixtures("known")
def test_the_default_partition_counts_too(submit: Callable[..., Ran]) -> None:
    """Who names neither a kind of GPU nor a partition gets that of the default one."""
    ran = submit(LARGE, "--gres=gpu:1", gpu_of_partition={"debug": "t4"}, default_gpu="a100-40")

    assert ran.status == 1
    assert "this job does not fit on t4: needs " in ran.err


@pytest.mark.usefixtures("known")
def test_the_smallest_gpu_is_filled_in(
    lab: SlurmLab, memgate: Client, submit: Callable[..., Ran]
) -> None:
    """GIVEN a job that asks for any GPU, THEN Slurm has the smallest on which it fits."""
    memgate.estimate(SMALL, {"name": "a100-40", "count": 1})
    ran = submit(SMALL, "--gres=gpu:1", default_gpu="a100-40", on_untyped="right_size")

    assert "gets the smallest here on which it fits: --gres=gpu:t4" in ran.err
    assert "gpu:t4" in lab.job(ran.job)["tres_per_node"]
    lab.wait_for(ran.job, "COMPLETED")


@pytest.mark.parametrize(
    ("change", "want"),
    [
        ({"batch_size": 0}, "job.batch_size is 0: it must be at least 1"),
        ({"batchsize": 8}, "job.batchsize"),
    ],
)
def test_a_wrong_description_is_refused_with_memgates_words(
    memgate: Client, submit: Callable[..., Ran], change: dict[str, int], want: str
) -> None:
    """Its owner learns which field is wrong, as everybody does who asks memgate."""
    ran = submit(SMALL | change)

    assert ran.status == 1
    assert f"the description of the job is wrong: {want}" in ran.err
    with pytest.raises(MemgateError) as refused:
        memgate.estimate(SMALL | change, gpu="t4")
    assert want in str(refused.value)


@pytest.mark.usefixtures("known")
def test_slurm_and_kubernetes_say_the_same_figure(
    memgate: Client, submit: Callable[..., Ran]
) -> None:
    """GIVEN one answer, THEN Slurm's users read the sentence with which webhooks refuse it."""
    said = memgate.estimate(LARGE, gpu="t4")

    assert said.explanation.headline.startswith("does not fit on t4: needs ")
    assert f"memgate: this job {said.explanation.headline}" in submit(LARGE).err


def test_a_wrong_gpu_in_the_operators_table_is_not_its_owners_mistake(
    lab: SlurmLab, gate: Gate, submit: Callable[..., Ran]
) -> None:
    """The job is let in; held instead, it waits for the operator, and the releaser says why."""
    wrong = {"gpu_of_type": {"t4": "t5"}}

    ran = submit(SMALL, on_unanswered="admit", **wrong)
    held = submit(SMALL, on_unanswered="hold", hold_seconds=0, **wrong)

    assert (ran.status, held.status) == (0, 0)
    assert "memgate cannot tell whether it fits until its operator acts: gpu is 't5'" in ran.err
    said = release(lab, gate)
    assert "no answer: gpu is 't5'" in said
    assert "1 jobs still wait for an answer" in said
    assert lab.job(held.job)["job_state"] == "PENDING"


@pytest.mark.usefixtures("known")
def test_a_job_knows_its_estimate(lab: SlurmLab, submit: Callable[..., Ran]) -> None:
    """So that a training script can report what it took: ``report_when_done``."""
    lab.set()
    said = lab.home / "work" / "said"
    ran = submit(SMALL, f"--output={said}", command="echo $MEMGATE_JOB")

    lab.wait_for(ran.job, "COMPLETED")
    assert said.read_text().strip() == lab.record(ran.job)["id"]


@pytest.mark.usefixtures("known")
def test_srun_and_salloc_say_it_in_a_comment(lab: SlurmLab, gate: Gate) -> None:
    """They have no script; a comment is a line of the command line."""
    lab.set(url=gate.url, key_file=str(gate.key_file))
    options = ["--gres=gpu:t4:1", "--immediate=20"]

    fits = lab.run("srun", *options, f"--comment=memgate:{json.dumps(SMALL)}", "true", nobody=True)
    not_so = lab.run("salloc", *options, f"--comment=memgate:{json.dumps(LARGE)}", "true")

    assert (fits.status, "this job fits on t4" in fits.err) == (0, True)
    assert (not_so.status, "this job does not fit on t4" in not_so.err) == (1, True)


@pytest.mark.usefixtures("known")
def test_a_judged_job_keeps_its_gpu(lab: SlurmLab, submit: Callable[..., Ran]) -> None:
    """Its owner may change much, but not what the answer was about; an administrator may."""
    ran = submit(SMALL, "--begin=now+1hour")
    change = ["scontrol", "update", f"JobId={ran.job}"]

    assert lab.run(*change, "Gres=gpu:a100:1", nobody=True).status == 1
    assert lab.run(*change, "TimeLimit=5", nobody=True).status == 0
    assert lab.run("scontrol", "hold", str(ran.job), nobody=True).status == 0
    assert lab.run("scontrol", "release", str(ran.job), nobody=True).status == 0
    assert lab.run(*change, "Gres=gpu:a100:1").status == 0


@pytest.mark.usefixtures("known")
def test_a_job_of_two_parts_is_judged_by_part(lab: SlurmLab, gate: Gate) -> None:
    """Of a heterogeneous job each part says its own; one that does not fit refuses all."""
    lab.set(url=gate.url, key_file=str(gate.key_file))
    parts = [f"--comment=memgate:{json.dumps(job)}" for job in (SMALL, LARGE)]
    gpu = "--gres=gpu:t4:1"

    ran = lab.run(
        *("sbatch", "--output=/dev/null", "--wrap=true", gpu, parts[0], ":", gpu, parts[1]),
        nobody=True,
    )

    assert ran.status == 1
    assert "this job does not fit on t4" in ran.err


@pytest.mark.usefixtures("known")
def test_a_first_part_without_a_description_of_its_own_is_told(lab: SlurmLab, gate: Gate) -> None:
    """Slurm 22.05 gives it the comment of the second part: the answer is not about it."""
    lab.set(url=gate.url, key_file=str(gate.key_file))
    gpu, comment = "--gres=gpu:t4:1", f"--comment=memgate:{json.dumps(SMALL)}"

    ran = lab.run(
        *("sbatch", "--output=/dev/null", "--wrap=true", gpu, ":", gpu, comment), nobody=True
    )

    assert "0: memgate: the first part is judged by --comment, which some versions" in ran.err


def _readable_key(lab: SlurmLab, gate: Gate) -> str:
    """Make a file that every user can read the key in."""
    path = lab.home / "client.key"
    path.write_text(gate.key)
    return str(path)


def test_the_client_waits_so_that_the_controller_need_not(
    lab: SlurmLab, gate: Gate, submit: Callable[..., Ran]
) -> None:
    """GIVEN a new question, WHEN sbatch itself has asked it, THEN slurmctld knows the answer."""
    key = _readable_key(lab, gate)

    ran = submit(
        never_seen(LARGE),
        client_key_file=key,
        client_seconds=100,
        advise=True,
        on_reject="admit",
    )

    assert ran.err.startswith("sbatch: memgate's advice: this job does not fit on t4: needs ")
    assert "sbatch: memgate: this job does not fit" in ran.err
    assert lab.record(ran.job)["decision"] == "reject"


def test_advice_can_be_bypassed_and_the_controller_cannot(
    lab: SlurmLab, gate: Gate, submit: Callable[..., Ran]
) -> None:
    """Whoever brings a configuration of their own is not advised, and refused all the same."""
    own = lab.home / "work" / "slurm.conf"
    text = (lab.etc / "slurm.conf").read_text()
    own.write_text(text.replace("CliFilterPlugins=lua", "CliFilterPlugins=none"))
    job = never_seen(LARGE)
    submit(job, client_key_file=_readable_key(lab, gate), on_reject="admit")
    lab.set(url=gate.url, key_file=str(gate.key_file))
    script = lab.home / "work" / "own.sh"
    script.write_text(f"#!/bin/sh\n#MEMGATE {json.dumps(job)}\n")

    sbatch = ["sbatch", "--output=/dev/null", "--gres=gpu:t4:1", str(script)]
    ran = lab.run("env", f"SLURM_CONF={own}", *sbatch, nobody=True)

    assert ran.status == 1
    assert "advice" not in ran.err
    assert "memgate: this job does not fit on t4" in ran.err


@pytest.mark.parametrize("how", ["away", "broken"])
def test_advice_never_stands_in_the_way(lab: SlurmLab, gate: Gate, how: str) -> None:
    """No server, or a plugin that is broken: the job is submitted, and nothing is said."""
    key = "/nonexistent" if how == "broken" else ""
    lab.set(url="http://127.0.0.1:9", client_key_file=key, tell_admitted=False)

    ran = lab.sbatch("--gres=gpu:t4:1", head=f"#MEMGATE {json.dumps(SMALL)}", nobody=True)

    assert ran.status == 0
    assert "advice" not in ran.err


def test_a_node_without_memgates_modules_runs_jobs(lab: SlurmLab) -> None:
    """A plugin that does not load would keep sbatch and srun from running, on that node."""
    modules = lab.etc / "memgate"
    aside = modules.rename(lab.etc / "aside")  # slurmctld has read them long ago
    try:
        batch = lab.sbatch(head=f"#MEMGATE {json.dumps(SMALL)}", nobody=True)
        step = lab.run("srun", "--immediate=20", "true", nobody=True)
    finally:
        aside.rename(modules)

    assert (batch.status, batch.err) == (0, "")
    assert step.status == 0, step.err


def test_what_accounting_measured_is_reported_once(memgate: Client, tmp_path: Path) -> None:
    """From sacct's real words to ``GET /accuracy``; a second look finds nothing new."""
    said = memgate.estimate(SMALL, {"name": "t4", "count": 1})
    text = (DATA / "slurm" / "sacct-22.05.txt").read_text()
    text = text.replace("0123456789abcdef0123456789abcdef", said.id)
    before = memgate.accuracy().all.num_outcomes

    def look() -> int:
        memory = Ledger(tmp_path / "memory.json")
        return Reporter(
            memgate, memory, lambda _: None, shortest_seconds=1, ask=lambda _: text
        ).look()

    assert [look(), look()] == [1, 0]
    assert memgate.accuracy().all.num_outcomes == before + 1
