"""An admin policy for SkyPilot: of the accelerators a task may get, keep those it fits on.

    # ~/.sky/config.yaml of the API server, or of a client
    admin_policy: skypilot_policy.MemgatePolicy

A task says what it is in the variable MEMGATE_JOB (``envs:``), a job spec; see skypilot.yaml.
Others pass untouched. A task for which nothing is left is refused, with what would fit. If one is
left, the task finds the estimate's id in MEMGATE_ESTIMATE_ID, for
``memgate.report_when_done``.

Needs ``pip install skypilot 'memgate[client]'``, this file in PYTHONPATH, and MEMGATE_URL.
"""

from __future__ import annotations

import logging
from typing import Any

import sky

from memgate import Client
from memgate.client.conversation import ServedEstimate
from memgate.client.errors import ClientError, RefusedError
from memgate.errors import InputError
from memgate.gpus import CATALOGUE, find_product
from memgate.jobspec import JobSpec
from memgate.spec_text import read_job_text

#: what SkyPilot calls cards whose name alone does not say how much memory they have
GPUS = {
    "A100": "a100-40",
    "V100": "v100-16",
    "RTX3060": "rtx-3060",
    "RTX4060": "rtx-4060",
    "RTX4090": "rtx-4090",
    "RTX2080Ti": "rtx-2080-ti",
}

#: seconds to wait for an answer; a question that was asked before is answered at once
WAIT_SECONDS = 60.0

#: what to do if there is no answer in time, or memgate does not know the accelerator
FAIL_OPEN = True

log = logging.getLogger(__name__)


class MemgatePolicy(sky.AdminPolicy):
    """Asks memgate about every accelerator that a task may get."""

    @classmethod
    def validate_and_mutate(cls, user_request: sky.UserRequest) -> sky.MutatedUserRequest:
        """Keep only the accelerators that the task fits on.

        Raises:
            RuntimeError: if none does, or the job spec is wrong; SkyPilot shows it.
        """
        task, text = user_request.task, user_request.task.envs.get("MEMGATE_JOB")
        if text:
            _check(task, read_job_text(text))
        return sky.MutatedUserRequest(task, user_request.skypilot_config)


def _check(task: Any, job: JobSpec) -> None:
    fitting, refusals, estimates = [], [], []
    with Client() as memgate:
        for resources in task.resources:
            refusal, estimate = _judge(memgate, job, resources.accelerators or {})
            if refusal:
                refusals.append(refusal)
                continue
            fitting.append(resources)
            estimates += [estimate.id] if estimate and estimate.id else []
    for refusal in refusals:
        log.warning("memgate: %s", refusal)
    if not fitting:
        raise RuntimeError(f"memgate: {'; '.join(refusals)}")
    if refusals:
        task.set_resources(type(task.resources)(fitting))  # a list is an order, a set is not
    if len(fitting) == len(estimates) == 1:
        task.update_envs({"MEMGATE_ESTIMATE_ID": estimates[0]})


def _judge(
    memgate: Client, job: JobSpec, accelerators: dict[str, float]
) -> tuple[str, ServedEstimate | None]:
    """Return why a job cannot have these accelerators, if it cannot, and memgate's estimate."""
    estimate = None
    for accelerator, count in accelerators.items():
        try:
            gpu = {"name": find_gpu_name(accelerator), "count": max(1, int(count))}
            estimate = memgate.estimate(job, gpu, wait=WAIT_SECONDS)
        except (ClientError, InputError) as error:
            is_the_jobs = isinstance(error, RefusedError) and error.status not in (401, 403)
            if is_the_jobs or not FAIL_OPEN:
                return f"{accelerator}: {error.message}", None
            log.warning("memgate: %s is not checked: %s", accelerator, error.message)
            continue
        if estimate.decision == "reject":
            smallest = f"; it fits on {estimate.fits_on[0]}" if estimate.fits_on else ""
            return f"{accelerator}: {estimate.reasons[0].message}{smallest}", estimate
        if estimate.decision == "uncertain":
            log.warning("memgate: %s: %s", accelerator, estimate.reasons[0].message)
    return "", estimate


def find_gpu_name(accelerator: str) -> str:
    """Return the name that a SkyPilot accelerator has in memgate's catalogue.

    Raises:
        InputError: if the catalogue has no such card.
    """
    gpu = CATALOGUE.get(GPUS.get(accelerator, "")) or find_product(accelerator)
    if gpu is None:
        raise InputError("it is not in memgate's catalogue (see: memgate gpus)")
    return gpu.name
