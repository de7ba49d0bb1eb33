"""Batches of different sizes, run in their order: the mechanism, and what is said about it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memgate.errors import UnsupportedJobError
from memgate.gpus import GpuTarget, find_gpu
from memgate.jobspec import parse_job_spec
from memgate.report import Estimate
from memgate.units import MIB
from memgate.varied import LENGTHS_VARY
from memgate_worker.engines.phantom.engine import PhantomEngine
from memgate_worker.engines.profile.engine import ProfileEngine
from memgate_worker.local import Script, estimate_script
from memgate_worker.runtimes.runtime import read_runtimes
from memgate_worker.timelines import decode_run, encode_run
from memgate_worker.verdicts import estimate_run

RUNTIME = read_runtimes()["torch-2.14"]
GPU = find_gpu("a100-40")

pytestmark = pytest.mark.skipif(
    not RUNTIME.is_installed, reason="runtime torch-2.14 is not built: make runtime"
)

CONFIG = {"n_layer": 2, "n_embd": 256, "n_head": 4, "vocab_size": 5000}
LENGTHS = [128, 512, 300, 700, 64, 333]
GPT2: dict[str, Any] = {
    "model": {"source": "transformers", "class": "GPT2LMHeadModel", "config": CONFIG},
    "input": {"sequence_length": LENGTHS},
    "batch_size": 4,
    "optimizer": {"name": "AdamW"},
    "zero_grad": "iteration_start",
}

SCRIPT = """
import torch
from transformers import GPT2Config, GPT2LMHeadModel

model = GPT2LMHeadModel(GPT2Config(**{config})).to("cuda")
optimizer = torch.optim.AdamW(model.parameters())
for length in {lengths}:
    optimizer.zero_grad()
    tokens = torch.ones(4, length, dtype=torch.int64)
    mask = torch.ones_like(tokens)
    mask[:, -1] = 0
    batch = {{"input_ids": tokens, "attention_mask": mask, "labels": tokens.clone()}}
    batch = {{name: value.to("cuda", copy=True) for name, value in batch.items()}}
    outputs = model(**batch)
    loss = outputs.loss
    loss.backward()
    optimizer.step()
"""


def _estimate(engine: PhantomEngine, job: dict[str, Any], memory_bytes: int = 0) -> Estimate:
    gpu = replace(GPU, memory_bytes=memory_bytes) if memory_bytes else GPU
    return estimate_run(engine.trace(parse_job_spec(job), gpu), GpuTarget(gpu=gpu))


def test_a_spec_of_lengths_takes_what_a_script_of_the_same_takes(
    engine: PhantomEngine, tmp_path: Path
) -> None:
    """The same batches in the same order leave the same fragments: equal to the byte."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(config=CONFIG, lengths=LENGTHS))

    of_spec = _estimate(engine, GPT2)
    of_script = estimate_script(
        Script(path=script, num_steps=len(LENGTHS)), GpuTarget(gpu=GPU), runtime=RUNTIME.name
    ).estimate

    assert of_spec.peak_allocated_bytes == of_script.peak_allocated_bytes
    assert of_spec.peak_reserved_bytes == of_script.peak_reserved_bytes


def test_variation_takes_more_than_the_longest_alone(engine: PhantomEngine) -> None:
    """The note has both figures, and they are those of the two runs."""
    said = _estimate(engine, GPT2)
    alone = _estimate(engine, GPT2 | {"input": {"sequence_length": max(LENGTHS)}})

    assert said.peak_reserved_bytes > alone.peak_reserved_bytes
    note = said.why(LENGTHS_VARY)
    assert note.startswith("6 batches were run, from length 64 to length 700: the most, ")
    assert f"{alone.peak_reserved_bytes / MIB:.2f} MiB" in note
    assert not alone.why(LENGTHS_VARY)


def test_a_job_dies_at_a_step(engine: PhantomEngine) -> None:
    """A GPU for the short batches only: the answer names the step and the length."""
    short = _estimate(engine, GPT2 | {"input": {"sequence_length": [128, 300]}})

    said = _estimate(engine, GPT2, memory_bytes=short.peak_bytes + 200 * MIB)

    assert said.oom is not None
    assert (said.oom.step, said.oom.batch) == (4, "length 700")
    assert "it dies in step 4 (length 700)" in said.why(LENGTHS_VARY)


def test_a_step_may_take_several_batches(engine: PhantomEngine) -> None:
    """With accumulation a step is named by all of its batches; the last takes the first again."""
    job = GPT2 | {"gradient_accumulation_steps": 4}

    traced = engine.trace(parse_job_spec(job), GPU)

    assert traced.varied is not None
    assert traced.varied.steps == (
        "length 128 then length 512 then length 300 then length 700",
        "length 64 then length 333",
    )
    assert [mark.step for mark in traced.marks if mark.step is not None][:2] == [0, 1]


def test_images_may_vary(engine: PhantomEngine) -> None:
    """Shapes of batches of torchvision's models, in pure bf16 too."""
    job = {
        "model": {"source": "torchvision", "name": "resnet18"},
        "input": {"shape": [[3, 64, 64], [3, 96, 128]]},
        "batch_size": 8,
    }

    for precision in ("fp32", "bf16"):
        said = _estimate(engine, job | {"precision": precision})
        assert "from 3x64x64 to 3x96x128" in said.why(LENGTHS_VARY)


def test_batches_that_are_all_the_same_are_no_news(engine: PhantomEngine) -> None:
    """A list of one length is that many iterations."""
    said = _estimate(engine, GPT2 | {"input": {"sequence_length": [64, 64]}})

    assert not said.why(LENGTHS_VARY)


def test_what_cannot_be_run_with_it_is_refused_by_name(engine: PhantomEngine) -> None:
    """An optimizer that calls the model itself, and the engine that runs one small batch."""
    with pytest.raises(UnsupportedJobError, match="LBFGS calls the model as often as it likes"):
        engine.trace(parse_job_spec(GPT2 | {"optimizer": {"name": "LBFGS"}}), GPU)
    with (
        ProfileEngine(RUNTIME) as profile,
        pytest.raises(UnsupportedJobError, match="input: the profile engine"),
    ):
        profile.trace(parse_job_spec(GPT2), GPU)


def test_the_note_survives_the_store(engine: PhantomEngine) -> None:
    """A stored run is said to vary as the first was."""
    traced = engine.trace(parse_job_spec(GPT2), GPU)

    assert decode_run(encode_run(traced)) == traced
    assert json.loads(encode_run(traced))["varied"]["num_batches"] == 6


@pytest.mark.parametrize("trainer", ["hf", "lightning"])
def test_the_trainers_of_libraries_run_the_same_batches(
    engine: PhantomEngine, trainer: str
) -> None:
    """In their own loops: with too little memory, they die in the step of the longest."""
    job = {name: value for name, value in GPT2.items() if name != "zero_grad"}
    job |= {"trainer": trainer, "input": {"sequence_length": [64, 300, 128]}}

    said = _estimate(engine, job)
    dying = _estimate(engine, job, memory_bytes=said.required_bytes - 16 * MIB)

    assert said.why(LENGTHS_VARY).startswith("3 batches were run, from length 64 to length 300")
    assert dying.oom is not None
    assert (dying.oom.step, dying.oom.batch) == (2, "length 300")
