"""Measured runs that nobody measured: small numbers, to be followed by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from memgate.accuracy import MeasuredRun, read_measured_runs

MODELS: dict[str, Any] = {
    "VGG16": {"source": "torchvision", "name": "vgg16"},
    "owner/gpt2": {"source": "transformers", "class": "GPT2LMHeadModel", "config": {}},
}

#: cap, whether the job died, peak
Cap = tuple[int, str, str]


def make_run(*, capped: Sequence[Cap] = (), **fields: str) -> MeasuredRun:
    """Return a run on a card of 1000 bytes that showed 500."""
    row = {
        "run": "r1",
        "model": "VGG16",
        "optimizer": "Adam",
        "batch_size": "8",
        "zero_grad_mode": "0",
        "gpu": "NVIDIA GeForce RTX 3060",
        "total_gpu_memory": "1000",
        "ground_bytes": "500",
        "real_oom": "false",
    } | fields
    caps = [
        {"run": "r1", "allocator_cap_bytes": str(cap), "oom_2nd": died, "peak2_preferred": peak}
        for cap, died, peak in capped
    ]
    (run,) = read_measured_runs([row], caps, MODELS)
    return run
