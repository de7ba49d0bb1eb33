"""A run of several ranks is answered as one job, at every door."""

from __future__ import annotations

from dataclasses import replace

from memgate.gpus import GpuTarget, find_gpu
from memgate.run_key import EngineIdentity, RunKey, RuntimeIdentity
from memgate_worker.engines.traced import TracedJob
from memgate_worker.timelines import pack, unpack
from memgate_worker.timings import time_estimate
from memgate_worker.verdicts import estimate_run, fit_everywhere
from tests.unit.worker.test_verdicts import JOB, _run

GPU = find_gpu("rtx-3060")


def _two_ranks() -> TracedJob:
    """Make a job of eight ranks, of which the first and a larger last were run."""
    first = _run(JOB, GPU)
    last = _run(JOB.model_copy(update={"batch_size": JOB.batch_size + 8}), GPU)
    last = replace(last, rank=7, world_size=8, seconds=2.0)
    return replace(first, world_size=8, other_ranks=(last,), seconds=1.0)


def test_the_answer_is_about_the_rank_that_needs_the_most() -> None:
    """Its peak, its picture and its timeline; the time is that of all runs."""
    traced = _two_ranks()

    said, shown, needs = time_estimate(lambda: traced, GpuTarget(gpu=GPU))

    assert [one.rank for one in said.ranks] == [0, 7]
    assert said.needs_bytes == said.ranks[1].needs_bytes > said.ranks[0].needs_bytes
    assert shown.rank == 7
    assert needs.ample.peak_reserved_bytes == said.peak_reserved_bytes
    assert said.timings_ms["run"] == 3000


def test_every_gpu_is_asked_for_the_worst_rank() -> None:
    """The table of GPUs needs as much as the answer for one of them."""
    traced = _two_ranks()

    entry = next(one for one in fit_everywhere(lambda *_: traced, JOB).gpus if one.gpu == GPU.name)

    assert entry.needs_bytes == estimate_run(traced, GpuTarget(gpu=GPU)).needs_bytes


def test_ranks_are_stored_together() -> None:
    """A run that comes out of the store has all of its ranks."""
    made_by = EngineIdentity(version="1", revision=1, runtime=RuntimeIdentity())
    key = RunKey.of(JOB, GPU, engine="phantom", made_by=made_by)
    traced = _two_ranks()

    assert unpack(key, pack(key, traced)) == traced
