"""A job that waits for a rehearsal -> its companion, submitted to Slurm as the job's owner."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from memgate_service.admission.slurm.commands import SlurmError, run
from memgate_service.admission.slurm.records import COMPANION, AdminComment, Record
from memgate_service.admission.slurm.rehearsals.companion import Errand, write_script
from memgate_service.admission.slurm.rehearsals.job_files import JobFiles
from memgate_service.admission.slurm.rehearsals.queue import WaitingJob
from memgate_worker.rehearsal.request import RehearsalRequest

_TIMEOUT_SECONDS = 60.0

#: of a job's time, what is left for starting the companion and for memgate's answer
_RESERVE_SECONDS = 15.0
_MIN_SECONDS = 10.0

#: how the companion is started, on every node where one may run
_MAIN = "from memgate_service.cli.main import main; main()"
PROGRAM = (sys.executable, "-I", "-c", _MAIN, "slurm", "companion")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompanionPlace:
    """Where companions run, and what they may take: they should cost nobody anything."""

    server: str
    #: a key that users may read
    key_file: str = ""
    partition: str = ""
    qos: str = ""
    account: str = ""
    num_cpus: int = 2
    memory_bytes: int = 8 << 30
    cache: str = ""
    program: tuple[str, ...] = PROGRAM

    def options(self, waiting: WaitingJob) -> Iterator[str]:
        """Yield options of sbatch."""
        partition = self.partition or next(iter(waiting.job.subject.partition), "")
        account = self.account or waiting.job.subject.account
        for name, value in (("partition", partition), ("qos", self.qos), ("account", account)):
            if value:
                yield f"--{name}={value}"
        yield f"--cpus-per-task={self.num_cpus}"
        yield f"--mem={self.memory_bytes >> 20}M"


def find_gpu(record: Record) -> dict[str, Any]:
    """Return the GPU of a job as ``POST /estimate`` takes it."""
    gpu: dict[str, Any] = (
        json.loads(record.gpu) if record.gpu.lstrip().startswith("{") else {"name": record.gpu}
    )
    count = {"count": record.gpus} if record.gpus else {}
    per_node = {"per_node": record.per_node} if record.per_node and record.gpus > 1 else {}
    return gpu | count | per_node


def slurm_variables(waiting: WaitingJob) -> dict[str, str]:
    """Return the variables that Slurm would give the job's script."""
    number, record = str(waiting.job.job_id), waiting.job.record
    tasks, nodes = str(waiting.num_tasks), str(waiting.num_nodes)
    variables = {
        **dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID"), number),
        **dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), tasks),
        **dict.fromkeys(("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), nodes),
        **dict.fromkeys(("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"), "0"),
        **dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURMD_NODENAME"), "localhost"),
        "SLURM_JOB_NAME": waiting.job.job_name,
        "SLURM_SUBMIT_DIR": waiting.directory,
        "SLURM_GPUS_ON_NODE": str(record.per_node or record.gpus or 1),
    }
    if waiting.tasks_per_node:
        variables["SLURM_NTASKS_PER_NODE"] = str(waiting.tasks_per_node)
    if waiting.array_task:
        variables |= {
            "SLURM_ARRAY_JOB_ID": str(waiting.script_of),
            "SLURM_ARRAY_TASK_ID": waiting.array_task,
        }
    return variables


def make_request(
    waiting: WaitingJob, files: JobFiles, place: CompanionPlace, seconds_left: float
) -> RehearsalRequest:
    """Return what the companion is to run."""
    own = {name: one for name, one in files.environment.items() if not name.startswith("SLURM_")}
    return RehearsalRequest(
        script=files.script,
        arguments=list(waiting.job.record.arguments),
        environment=own | slurm_variables(waiting),
        directory=waiting.directory,
        gpu=find_gpu(waiting.job.record),
        seconds=max(_MIN_SECONDS, seconds_left - _RESERVE_SECONDS),
        memory_bytes=place.memory_bytes,
        cache=place.cache,
    )


def start(
    waiting: WaitingJob,
    request: RehearsalRequest,
    place: CompanionPlace,
    key: str,
    environment: Mapping[str, str] = os.environ,
) -> int:
    """Submit the companion; return its number.

    Raises:
        SlurmError: if Slurm does not take it.
    """
    errand = Errand(request=request, server=place.server, key_file=place.key_file)
    script = write_script(errand, place.program, environment.get("SLURM_CONF", ""))
    minutes = math.ceil((request.seconds + _RESERVE_SECONDS) / 60) + 1
    command = [
        *("sbatch", "--parsable", f"--uid={waiting.uid}", f"--gid={waiting.gid}"),
        *("--ntasks=1", f"--time={minutes}", "--no-requeue", "--export=ALL", "--output=/dev/null"),
        *("--chdir=/", f"--job-name=memgate-rehearsal-{waiting.job.job_id}"),
        *place.options(waiting),
    ]
    number = _submit(command, script, environment)
    record = Record(decision=COMPANION, of=waiting.job.job_id, key=key)
    comment = AdminComment(record=record, others={}).text()
    try:
        run(["scontrol", "update", f"JobId={number}", f"AdminComment={comment}"])
    except SlurmError:  # nobody would know whose it is
        run(["scancel", "--quiet", str(number)])
        raise
    return number


def _submit(command: list[str], script: str, environment: Mapping[str, str]) -> int:
    # all of it becomes the companion's; with --export=NIL Slurm would look for the owner's own
    own = {name: environment[name] for name in ("PATH", "SLURM_CONF") if name in environment}
    try:
        ran = subprocess.run(
            command,
            input=script,
            env=own,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmError(f"sbatch cannot be run: {error}") from None
    if ran.returncode != 0:
        said = ran.stderr.strip().splitlines() or ["nothing"]
        raise SlurmError(f"sbatch failed: {said[-1]:.300}")
    return int(ran.stdout.split(";")[0])
