"""PyTorch's own MemTracker and the phantom count the same tensors."""

from __future__ import annotations

import pytest

from memgate.jobspec import parse_job_spec
from memgate_worker.runtimes.runtime import read_runtimes
from tests.bench.compare import ask_mem_tracker, ask_phantom, example_jobs

RUNTIME = read_runtimes()["torch-2.14"]


def test_the_examples_are_jobs() -> None:
    """What is compared is what the examples say."""
    assert [job.batch_size for job in example_jobs().values()] == [32, 8]


@pytest.mark.slow
@pytest.mark.skipif(not RUNTIME.is_installed, reason="runtime torch-2.14 is not built")
def test_both_count_the_same_tensors() -> None:
    """Two ways to run a job without a GPU agree on what is allocated, but for workspaces."""
    job = parse_job_spec(
        {
            "model": {"source": "torchvision", "name": "resnet18"},
            "input": {"shape": [3, 64, 64]},
            "batch_size": 64,
            "iterations": 2,
        }
    )

    ours = ask_phantom(job, RUNTIME)
    (theirs,) = ask_mem_tracker([job], RUNTIME)

    assert theirs["peak_bytes"] == pytest.approx(ours.allocated_bytes, rel=0.1)
    assert ours.reserved_bytes > ours.allocated_bytes
    assert ours.seconds > 0, "the job was run, not remembered"
