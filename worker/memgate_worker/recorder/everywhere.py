"""A command -> every GPU of the catalogue: it is run once for GPUs on which it does the same."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from memgate.gpus import CATALOGUE, GpuSpec
from memgate.report import Fit, FitEntry
from memgate_worker.engines.traced import TracedJob
from memgate_worker.recorder.question import CommandQuestion
from memgate_worker.recorder.ranks import record_command
from memgate_worker.verdicts import fit_groups

#: every PyTorch has kernels for it
_FIRST_GPU = "a100-80"


def fit_command_everywhere(
    question: CommandQuestion, on_gpus: Callable[[list[FitEntry]], None] = lambda _: None
) -> Fit:
    """Say for every GPU whether the job of a command fits; ``on_gpus`` is told of each result.

    Raises what ``record_command`` raises, if there is no answer for any of them.
    """
    known: dict[GpuSpec, TracedJob] = {}

    def trace(gpu: GpuSpec) -> TracedJob:
        if gpu not in known:
            known[gpu] = record_command(replace(question, gpu=gpu)).traced
        return known[gpu]

    # With cudnn.benchmark, only plans whose workspaces fit in memory are tried.
    with_memory = trace(CATALOGUE[_FIRST_GPU]).cudnn_benchmark
    groups: dict[tuple[object, ...], list[GpuSpec]] = {}
    known_first = sorted(CATALOGUE.values(), key=lambda gpu: gpu.name != _FIRST_GPU)
    for gpu in known_first:
        memory = gpu.memory_bytes if with_memory else None
        groups.setdefault((gpu.compute_capability, gpu.multiprocessors, memory), []).append(gpu)
    return fit_groups(trace, groups.values(), on_gpus)
