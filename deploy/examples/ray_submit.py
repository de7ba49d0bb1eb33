"""Submit a job to Ray if memgate says that it fits.

    python ray_submit.py resnet50.json --accelerator T4 -- python train.py

Needs ``pip install 'ray[default]' 'memgate[client]'``; memgate is at MEMGATE_URL, Ray at
RAY_API_SERVER_ADDRESS (http://127.0.0.1:8265). Exit status: 0 submitted, 3 it does not fit, 4 it
may not fit (--admit-uncertain submits it), 1 no answer. The job finds the estimate's id in
MEMGATE_ESTIMATE_ID, for ``memgate.report_when_done``.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import Any

from memgate import Client
from memgate.client.errors import ClientError
from memgate.errors import InputError
from memgate.gpus import CATALOGUE, find_product
from memgate.spec_text import read_job_text

#: Ray's accelerator types that do not say how much memory a card has: assume the smaller one
GPUS = {"A100": "a100-40", "A100-40G": "a100-40", "A100-80G": "a100-80", "V100": "v100-16"}


def find_gpu_name(accelerator: str) -> str:
    """Return the name that a Ray accelerator type has in memgate's catalogue.

    Raises:
        InputError: if the catalogue has no such card.
    """
    gpu = CATALOGUE.get(GPUS.get(accelerator, "")) or find_product(accelerator)
    if gpu is None:
        raise InputError(f"memgate does not know {accelerator}; it knows: {', '.join(CATALOGUE)}")
    return gpu.name


def make_submission(
    entrypoint: list[str], accelerator: str, num_gpus: int, estimate_id: str | None
) -> dict[str, Any]:
    """Return what Ray should run, and where: the arguments of ``submit_job``."""
    known = estimate_id or ""
    return {
        "entrypoint": shlex.join(entrypoint),
        "entrypoint_num_gpus": num_gpus,
        # how Ray chooses nodes by their kind of GPU: any small amount of this resource
        "entrypoint_resources": {f"accelerator_type:{accelerator}": 0.001},
        "runtime_env": {"env_vars": {"MEMGATE_ESTIMATE_ID": known}},
        "metadata": {"memgate_estimate_id": known},
    }


def read_arguments(arguments: list[str] | None = None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Submit a job to Ray if it fits.")
    parser.add_argument("spec", type=Path, help="the job spec, JSON or YAML")
    parser.add_argument("--accelerator", required=True, help="as Ray calls it: T4, A100-80G")
    parser.add_argument("--num-gpus", type=int, default=1)
    parser.add_argument("--wait", type=float, default=300, help="seconds for the answer")
    parser.add_argument("--admit-uncertain", action="store_true")
    parser.add_argument("entrypoint", nargs="+", help="after --: what Ray should run")
    return parser.parse_args(arguments)


def main() -> int:
    """Ask, then submit."""
    given = read_arguments()
    try:
        from ray.job_submission import JobSubmissionClient
    except ImportError:
        print("this needs Ray: pip install 'ray[default]'", file=sys.stderr)
        return 1
    try:
        job = read_job_text(given.spec.read_text())
        gpu = {"name": find_gpu_name(given.accelerator), "count": given.num_gpus}
        with Client() as memgate:
            said = memgate.estimate(job, gpu, wait=given.wait)
    except (InputError, ClientError, OSError) as error:
        print(f"not submitted: {error}", file=sys.stderr)
        return 1
    print(f"{said.decision}: {said.reasons[0].message}", file=sys.stderr)
    if said.decision == "reject":
        return 3
    if said.decision == "uncertain" and not given.admit_uncertain:
        return 4
    address = os.environ.get("RAY_API_SERVER_ADDRESS", "http://127.0.0.1:8265")
    submission = make_submission(given.entrypoint, given.accelerator, given.num_gpus, said.id)
    print(JobSubmissionClient(address).submit_job(**submission))
    return 0


if __name__ == "__main__":
    sys.exit(main())
