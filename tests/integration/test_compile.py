"""``torch.compile`` under ``memgate run``: compiled for real, launched for nothing.

Needs Triton, which ``make parts`` gets: our runtimes do without it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memgate.errors import NotModelledError
from memgate.timeline import Category
from memgate_worker.runtimes.runtime import read_runtimes
from tests.integration.recording import record_script
from tests.parts import TRITON_DIR

RUNTIME = read_runtimes()["torch-2.14"]

pytestmark = [
    pytest.mark.skipif(not RUNTIME.is_installed, reason="runtime torch-2.14: make runtime"),
    pytest.mark.skipif(not TRITON_DIR.is_dir(), reason="Triton is missing: make parts"),
]

TRAIN = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.GELU(), nn.Linear(1024, 256)).cuda()
loss_of = torch.compile(lambda out: (out.float() ** 2).exp().mean())
model = torch.compile(model, mode={mode!r}, fullgraph=True)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(6):
    loss_of(model(torch.zeros(1024, 256, device="cuda"))).backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Record the job, compiled in some mode."""
    monkeypatch.setenv("PYTHONPATH", str(TRITON_DIR))
    path = tmp_path / "train.py"

    def run(mode: str = "default", **options: Any) -> Any:
        path.write_text(TRAIN.format(mode=mode))
        return record_script(RUNTIME, path, **options)

    return run


def kept_for_backward(run: Any) -> int:
    """Return the bytes that the first step's forward pass keeps for its backward pass."""
    labels = run.traced.timeline.labels
    first = next(mark.event_index for mark in run.traced.marks if mark.step == 1)
    return sum(
        event.size_bytes
        for event in run.traced.timeline.events[:first]
        if hasattr(event, "size_bytes") and labels[event.block_id].category is Category.ACTIVATIONS
    )


def test_a_compiled_job_is_answered_as_compiled(record: Any) -> None:
    """It keeps less than the eager one; processes that compile are no others that use the GPU.

    That the real allocator had the same peaks is checked in every run.
    """
    compiled, eager = record(), record(ignores_compile=True)

    assert (compiled.num_steps, compiled.traced.doubts) == (6, ())
    assert [doubt.code for doubt in eager.traced.doubts] == ["COMPILE_IGNORED"]
    assert 0 < kept_for_backward(compiled) < kept_for_backward(eager)
    layers = {label.layer for label in compiled.traced.timeline.labels}
    assert {"0", "3"} <= layers
    assert not any("_orig_mod" in layer for layer in layers)


@pytest.mark.slow
def test_cuda_graphs_are_refused_by_name(record: Any) -> None:
    """Their pools are not modelled: an answer without them would be another job's."""
    with pytest.raises(NotModelledError, match=r"CUDA graphs .* reduce-overhead"):
        record("reduce-overhead")


@pytest.mark.slow
def test_the_largest_batch_is_found_without_compiling(run: Any, tmp_path: Path) -> None:
    """That compilation was ignored makes the answer uncertain, and does not end the search."""
    path = tmp_path / "train.py"
    path.write_text("""
import sys, torch
model = torch.compile(torch.nn.Linear(2048, 2048).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=1)
for _ in range(6):
    model(torch.zeros(int(sys.argv[1]), 64, 2048, device="cuda")).sum().backward()
    optimizer.step()
""")
    command = (RUNTIME.python, path, "{batch}")

    ran = run("max-batch", "--gpu", "t4", "--ignore-compile", "--json", "--", *command)

    found = json.loads(ran.out)
    assert (ran.status, found["estimate"]["decision"]) == (4, "uncertain")
    assert found["batch_size"] > 1000
