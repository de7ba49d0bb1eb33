"""Real CUDA PyTorch on a GPU that is not there, in the default runtime."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.replay import replay
from memgate.errors import (
    RuntimeBrokenError,
    SimulationError,
)
from memgate.gpus import find_gpu
from memgate.jobspec import parse_job_spec
from memgate.timeline import Category
from memgate.units import MIB
from memgate_worker.engines.phantom.engine import (
    TRACE_CAPACITY_BYTES,
    PhantomEngine,
    check_against_the_real_allocator,
)
from memgate_worker.engines.traced import TracedJob
from memgate_worker.limits import RunLimits
from memgate_worker.runtimes.runtime import read_runtimes
from tests.conftest import DATA
from tests.runtimes import share_libraries

RUNTIME = read_runtimes()["torch-2.14"]

pytestmark = pytest.mark.skipif(
    not RUNTIME.is_installed, reason="runtime torch-2.14 is not built: make runtime"
)

RESNET: dict[str, Any] = {
    "model": {"source": "torchvision", "name": "resnet18"},
    "input": {"shape": [3, 64, 64]},
    "batch_size": 16,
    "optimizer": {"name": "Adam"},
}

GPT2: dict[str, Any] = {
    "model": {
        "source": "transformers",
        "class": "GPT2LMHeadModel",
        "config": {"n_layer": 2, "n_embd": 128, "n_head": 2, "vocab_size": 1000},
    },
    "input": {"sequence_length": 64},
    "batch_size": 4,
    "optimizer": {"name": "AdamW"},
}


def _trace(engine: PhantomEngine, job: dict[str, Any], gpu: str = "a100-40") -> TracedJob:
    return engine.trace(parse_job_spec(job), find_gpu(gpu))


def _bytes_by_category(traced: TracedJob) -> dict[Category, int]:
    totals: dict[Category, int] = {}
    sizes = [event.size_bytes for event in traced.timeline.events if hasattr(event, "size_bytes")]
    for label, size in zip(traced.timeline.labels, sizes, strict=True):
        totals[label.category] = totals.get(label.category, 0) + size
    return totals


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"allocator": "expandable_segments:True"},
        {"allocator": "max_split_size_mb:32,roundup_power2_divisions:8"},
        {"precision": "amp-fp16", "clip_grad_norm": 1.0},
        {"precision": "amp-bf16", "channels_last": True},
        {"precision": "bf16"},
        {"gradient_accumulation_steps": 2, "zero_grad": "after_step"},
        {"optimizer": {"name": "Adam", "kwargs": {"fused": True}}},
        {"optimizer": {"name": "Adam", "kwargs": {"foreach": False}}},
        {"optimizer": {"name": "Adagrad"}, "zero_grad": "iteration_start"},
        {"cudnn_benchmark": True},
        {"cudnn_benchmark": True, "allocator": "expandable_segments:True"},
    ],
    ids=str,
)
def test_the_simulator_has_the_peaks_of_the_real_allocator(
    engine: PhantomEngine, change: dict[str, Any]
) -> None:
    """Every trace checks itself: peaks of both pools, of four counters, to the byte."""
    traced = _trace(engine, RESNET | change)

    assert traced.num_parameters == 11_689_512
    assert len(traced.timeline.events) > 1000


def test_a_language_model_runs(engine: PhantomEngine) -> None:
    """Transformers' models, from a config, with checkpointing or without."""
    plain = _trace(engine, GPT2)
    checkpointed = _trace(engine, GPT2 | {"gradient_checkpointing": True})

    activations = [_bytes_by_category(job)[Category.ACTIVATIONS] for job in (plain, checkpointed)]
    assert activations[1] < activations[0]


def test_weights_that_are_made_filled_take_no_memory_here(engine: PhantomEngine) -> None:
    """Experts that begin as zeros: 2.8 GB of weights are built where 1.5 GiB are allowed."""
    model = {
        "source": "transformers",
        "class": "Llama4ForCausalLM",
        "config": {"num_hidden_layers": 1, "num_local_experts": 4, "vocab_size": 1000},
    }
    limits = RunLimits(memory_bytes=3 << 29)
    job = parse_job_spec(GPT2 | {"model": model, "iterations": 1})

    run = engine.trace(job, find_gpu("h200"), limits=limits)

    assert run.num_parameters * 4 > 1.5 * limits.memory_bytes


def test_a_field_for_convolutions_is_noted_on_text(engine: PhantomEngine) -> None:
    """It changes nothing of a model of text, and the answer says so; of images it says nothing."""
    fields = {"cudnn_benchmark": True, "channels_last": True}

    said = [_trace(engine, job | fields).notes for job in (GPT2, RESNET)]

    assert [[one.code for one in notes] for notes in said] == [["NO_EFFECT"], []]
    assert said[0][0].message.startswith("channels_last and cudnn_benchmark: the model has no")


def test_a_model_of_timm_gets_its_own_input(engine: PhantomEngine) -> None:
    """Inception is trained with 299 x 299 pixels."""
    job = RESNET | {"model": {"source": "timm", "name": "inception_v3"}, "input": {}}

    totals = _bytes_by_category(_trace(engine, job))

    assert totals[Category.BATCH] == 4 * (16 * 3 * 299 * 299 * 4 + 16 * 8)


def test_a_constructor_that_computes_gets_right_answers(engine: PhantomEngine) -> None:
    """RegNet takes its widths from a small tensor; only weights are left uncomputed."""
    job = RESNET | {"model": {"source": "torchvision", "name": "regnet_y_400mf"}}

    assert _trace(engine, job).num_parameters == 4_344_144


def test_weights_that_are_drawn_until_they_fit_are_not_drawn(engine: PhantomEngine) -> None:
    """A truncated normal repeats while a value is out of range, and nobody computes the values."""
    change = {"model": {"source": "torchvision", "name": "convnext_tiny"}, "iterations": 1}

    for batch_size in range(2, 6):  # what lies in unfilled memory is a matter of luck
        job = RESNET | change | {"batch_size": batch_size}
        traced = engine.trace(
            parse_job_spec(job), find_gpu("a100-40"), limits=RunLimits(seconds=60)
        )

        assert traced.num_parameters == 28_589_128


def test_a_self_check_that_fails_is_noticed(engine: PhantomEngine) -> None:
    """A simulator that disagrees with the real allocator must not answer."""
    traced = _trace(engine, GPT2)
    config = parse_alloc_conf("")
    stats = replay(traced.timeline, config, TRACE_CAPACITY_BYTES).stats.memory_stats()
    right = {"reserved_bytes.all.peak": stats["reserved_bytes.all.peak"]}
    check_against_the_real_allocator(traced.timeline, "", right)

    wrong = {name: value + 512 for name, value in right.items()}
    with pytest.raises(SimulationError, match=r"self-check failed: reserved_bytes\.all\.peak was"):
        check_against_the_real_allocator(traced.timeline, "", wrong)


def test_blocks_are_known_for_what_they_are(engine: PhantomEngine) -> None:
    """Parameters, gradients and Adam's two moments are as large as they must be."""
    traced = _trace(engine, RESNET | {"zero_grad": "after_step"})

    totals = _bytes_by_category(traced)
    weights = traced.num_parameters * 4
    assert weights < totals[Category.PARAMETERS] < weights * 1.01, "parameters and buffers"
    assert totals[Category.GRADIENTS] == 4 * weights, "once in each of four iterations"
    assert totals[Category.OPTIMIZER_STATE] >= 2 * weights
    assert totals[Category.BATCH] == 4 * (16 * 3 * 64 * 64 * 4 + 16 * 8)
    layers = {label.layer for label in traced.timeline.labels}
    assert {"conv1", "layer4.1.bn2", "fc"} <= layers


def test_cost_does_not_grow_with_the_batch(engine: PhantomEngine) -> None:
    """A batch of 10,000 makes the same events as one of 10; nothing is computed."""
    small, large = (_trace(engine, RESNET | {"batch_size": size}) for size in (10, 10_000))

    ratio = len(large.timeline.events) / len(small.timeline.events)
    assert 0.8 < ratio < 1.25
    peaks = [
        replay(job.timeline, parse_alloc_conf(""), 1 << 43).peak_reserved_bytes
        for job in (small, large)
    ]
    assert peaks[1] > 50 * peaks[0]


def test_the_same_job_is_not_run_again(engine: PhantomEngine) -> None:
    """Another setting of the allocator, another amount of memory: only the replay differs."""
    first = _trace(engine, GPT2 | {"batch_size": 5}, "a100-40")
    again = _trace(engine, GPT2 | {"batch_size": 5, "allocator": "max_split_size_mb:64"}, "a100-80")
    other = _trace(engine, GPT2 | {"batch_size": 5}, "rtx-3060")

    assert again.timeline is first.timeline
    assert again.alloc_conf == "max_split_size_mb:64"
    assert other.timeline is not first.timeline


def test_a_cudnn_that_cannot_be_opened_is_told(tmp_path: Path) -> None:
    """It is never passed over in silence: the estimate would be another one."""
    broken = share_libraries(RUNTIME, tmp_path)
    broken.cudnn_dir.mkdir()
    broken.cudnn_stamp.write_text(broken.cudnn or "")

    with (
        PhantomEngine(broken) as engine,
        pytest.raises(RuntimeBrokenError, match=r"the real cuDNN cannot be used: .*libcudnn_graph"),
    ):
        _trace(engine, RESNET)


def test_a_gpu_decides_what_pytorch_chooses(engine: PhantomEngine) -> None:
    """cuBLAS workspaces are larger from compute capability 9.0 on."""
    workspaces = [
        _bytes_by_category(_trace(engine, GPT2, gpu))[Category.WORKSPACE]
        for gpu in ("a100-40", "h100-80")
    ]

    assert workspaces[0] >= 8_519_680
    assert workspaces[1] >= 32 * MIB


def test_a_model_of_eight_billion_parameters_needs_no_memory_here(engine: PhantomEngine) -> None:
    """A Llama of 8B in bf16: 16 GB of weights on the phantom, none on the host."""
    job = {
        "model": {"source": "transformers", "name": "meta-llama/Llama-3.1-8B"},
        "input": {"sequence_length": 128},
        "batch_size": 1,
        "precision": "bf16",
        "iterations": 2,
    }

    traced = _trace(engine, job, "a100-80")

    assert traced.num_parameters == 8_030_261_248
    assert _bytes_by_category(traced)[Category.PARAMETERS] > 16 * 10**9


class TestCommands:
    """The commands that use the engine."""

    @pytest.mark.parametrize(
        ("batch_size", "want_status", "want_decision"), [(16, 0, "admit"), (60_000, 3, "reject")]
    )
    def test_estimate_answers_with_its_exit_status(
        self, run: Any, tmp_path: Path, batch_size: int, want_status: int, want_decision: str
    ) -> None:
        """The contract's fields, and a breakdown that adds up."""
        path = tmp_path / "job.json"
        path.write_text(json.dumps(RESNET | {"batch_size": batch_size}))

        ran = run("estimate", path, "--gpu", "rtx-3060", "--json")

        answer = json.loads(ran.out)
        assert (ran.status, answer["decision"]) == (want_status, want_decision)
        assert sum(answer["breakdown"].values()) == answer["peak_bytes"]
        assert answer["required_bytes"] <= answer["upper_bound_bytes"]
        assert set(answer["timings_ms"]) == {"run", "trace", "replay", "total"}

    def test_estimate_tells_a_person_why(self, run: Any) -> None:
        """A YAML example of the repository, in words."""
        ran = run("estimate", "deploy/examples/gpt2.yaml", "--gpu", "rtx-4060")

        assert ran.status == 3
        assert re.search(
            r"reject: does not fit on rtx-4060: needs 1\d\.\d\d GiB, rtx-4060 has", ran.out
        )
        assert "PyTorch would say: CUDA out of memory." in ran.out

    def test_accuracy_beats_the_published_on_the_sample(self, run: Any) -> None:
        """Nine measured jobs: the table's figures, and the bound they must keep."""
        ran = run(
            *("accuracy", DATA / "peaks_sample.csv", "--capped", DATA / "capped_sample.csv"),
            *("--runtime", "torch-2.14", "--json"),
        )

        figures = json.loads(ran.out)
        ours = figures["phantom"]
        assert (ours["rows"], figures["failed"]) == (8, {})
        assert ours["median_relative_error"] < 0.05
        assert ours["capped"]["right"] / ours["capped"]["rows"] > 0.85
        assert sum(ours["verdicts"].values()) == 9
        assert ours["verdicts"]["admit_died"] == 0
        assert sum(ours["capped_verdicts"].values()) == ours["capped"]["rows"]
        assert figures["xmem"]["rows"] == 8

    def test_accuracy_prints_a_table_and_draws(self, run: Any, tmp_path: Path) -> None:
        """Ours beside theirs, in figures and in pictures."""
        ran = run("accuracy", DATA / "peaks_sample.csv", "--limit", "2", "--plot", tmp_path / "new")

        assert "phantom with torch-2.14" in ran.out
        assert "xmem" in ran.out
        for name in ("scatter.png", "errors.png"):
            assert f"picture: {tmp_path / 'new' / name}" in ran.out
            assert (tmp_path / "new" / name).stat().st_size > 10_000
