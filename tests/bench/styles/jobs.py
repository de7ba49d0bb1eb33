"""Small training jobs as people write them: each is a loop over batches, on a CPU or on CUDA.

Run by the Python of a runtime: ``python jobs.py NAME --device cuda`` trains, which is what the
phantom sees; ``recording`` calls the same loops on the CPU, under torch.profiler.
"""

from __future__ import annotations

import argparse

import language_jobs
import picture_jobs
import several_models_jobs
import torch
import unusual_jobs
from loops import HIDING, JOBS, Loop

__all__ = [
    "HIDING",
    "JOBS",
    "Loop",
    "language_jobs",
    "picture_jobs",
    "several_models_jobs",
    "unusual_jobs",
]


def main() -> None:
    """Train one of them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name", choices=sorted(JOBS))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--steps", type=int, default=6)
    asked = parser.parse_args()
    torch.manual_seed(0)
    JOBS[asked.name](asked.device, asked.steps, lambda: None, lambda: None)


if __name__ == "__main__":
    main()
