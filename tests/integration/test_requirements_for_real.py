"""A runtime from the versions of one of ours, by its requirements, answers exactly as ours.

It downloads torch, 0.8 GB, and takes 2 GB of disk and some minutes: ``make test-environments``.
"""

from __future__ import annotations

import pytest

from memgate.gpus import CATALOGUE
from memgate.jobspec import parse_job_spec
from memgate.timeline import Timeline
from memgate_worker.engines.phantom.engine import PhantomEngine
from memgate_worker.runtimes.contents import read_contents
from memgate_worker.runtimes.install import install, plan_requirements
from memgate_worker.runtimes.runtime import Runtime, read_runtimes

pytestmark = pytest.mark.environments

JOBS = {
    "cnn": {
        "model": {"source": "torchvision", "name": "resnet18"},
        "input": {"shape": [3, 64, 64]},
        "batch_size": 8,
    },
    "language model": {
        "model": {
            "source": "transformers",
            "class": "GPT2LMHeadModel",
            "config": {"n_layer": 2, "n_embd": 64, "n_head": 4},
        },
        "input": {"sequence_length": 64},
        "batch_size": 4,
    },
}


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Runtime, Runtime]:
    """Return ours, and one that pip makes from the same versions."""
    ours = read_runtimes()["torch-2.6"]
    if not ours.is_installed:
        pytest.skip("runtime torch-2.6 is not installed: memgate runtimes install torch-2.6")
    folder = tmp_path_factory.mktemp("requirements")
    path = folder / "requirements.txt"
    path.write_text("\n".join(("# of a job", *ours.bare, *ours.full)))
    made = install(plan_requirements(path, "lab", folder / "home"))
    assert not install(plan_requirements(path, "lab", folder / "home")).changed
    return ours, made.runtime


def _trace(runtime: Runtime, job: str) -> Timeline:
    with PhantomEngine(runtime) as engine:
        return engine.trace(parse_job_spec(JOBS[job]), CATALOGUE["rtx-3060"]).timeline


@pytest.mark.parametrize("job", JOBS)
def test_events_are_the_same(both: tuple[Runtime, Runtime], job: str) -> None:
    """Each allocation and each free, in their order."""
    ours, made = both

    assert _trace(made, job).events == _trace(ours, job).events


def test_it_has_nothing_of_nvidias(both: tuple[Runtime, Runtime]) -> None:
    """Two gigabytes, not five."""
    _, made = both

    assert list(made.site_packages.glob("nvidia*")) == []
    assert list(made.site_packages.glob("triton*")) == []
    assert read_contents(made).disk_bytes < 2_500_000_000
