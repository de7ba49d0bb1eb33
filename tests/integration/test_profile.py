"""Jobs on the CPU under the profiler, beside the same jobs on the phantom."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.replay import Replay, replay
from memgate.capacity import AMPLE_BYTES
from memgate.errors import HostMemoryError, InputError, NoKernelsError
from memgate.gpus import find_gpu
from memgate.jobspec import parse_job_spec
from memgate.timeline import Category
from memgate_worker.engines.phantom.engine import PhantomEngine
from memgate_worker.engines.profile.engine import ProfileEngine
from memgate_worker.engines.registry import Engine, start_engine
from memgate_worker.runtimes.runtime import read_runtimes
from tests.bench.extrapolation import measure
from tests.conftest import DATA
from tests.integration.recording import record_script

RUNTIME = read_runtimes()["torch-2.14"]

pytestmark = pytest.mark.skipif(
    not RUNTIME.is_installed, reason="runtime torch-2.14 is not built: make runtime"
)

CNN: dict[str, Any] = {
    "model": {"source": "torchvision", "name": "resnet18"},
    "input": {"shape": [3, 64, 64]},
    "batch_size": 70,
    "optimizer": {"name": "Adam"},
}
GPT2: dict[str, Any] = {
    "model": {
        "source": "transformers",
        "class": "GPT2LMHeadModel",
        "config": {"n_layer": 2, "n_embd": 128, "n_head": 2, "vocab_size": 1000},
    },
    "input": {"sequence_length": 64},
    "batch_size": 40,
    "optimizer": {"name": "AdamW"},
}


@pytest.fixture(scope="module")
def profiler() -> Iterator[ProfileEngine]:
    """A warm engine for all tests of this file."""
    with ProfileEngine(RUNTIME) as engine:
        yield engine


@pytest.fixture(scope="module")
def phantom(engine: PhantomEngine) -> PhantomEngine:
    """What it is held against."""
    return engine


def _replay(engine: Engine, job: dict[str, Any]) -> Replay:
    traced = engine.trace(parse_job_spec(job), find_gpu("a100-40"))
    return replay(traced.timeline, parse_alloc_conf(""), AMPLE_BYTES)


@pytest.mark.parametrize(
    "job",
    [
        CNN,
        CNN | {"optimizer": {"name": "SGD"}, "zero_grad": "after_step"},
        CNN | {"model": {"source": "torchvision", "name": "mobilenet_v2"}},
        GPT2,
        GPT2 | {"zero_grad": "iteration_start", "clip_grad_norm": 1.0},
        GPT2 | {"precision": "amp-bf16"},
        CNN | {"precision": "amp-fp16"},
        GPT2 | {"optimizer": {"name": "Adagrad"}},
        GPT2 | {"optimizer": {"name": "NAdam"}},
        GPT2 | {"optimizer": {"name": "RMSprop", "kwargs": {"centered": True, "momentum": 0.9}}},
    ],
    ids=[
        *("cnn", "sgd", "mobilenet", "gpt2", "clipped", "autocast", "scaled", "adagrad"),
        *("nadam", "centered"),
    ],
)
def test_a_cpu_at_small_batches_tells_what_a_gpu_needs_at_a_large_one(
    profiler: ProfileEngine, phantom: PhantomEngine, job: dict[str, Any]
) -> None:
    """What is allocated within 1 %, what is reserved within 3 %, of PyTorch's own CUDA code."""
    ours, theirs = _replay(profiler, job), _replay(phantom, job)

    assert ours.peak_allocated_bytes == pytest.approx(theirs.peak_allocated_bytes, rel=0.01)
    assert ours.peak_reserved_bytes == pytest.approx(theirs.peak_reserved_bytes, rel=0.03)


@pytest.mark.parametrize("job", [CNN, GPT2], ids=["cnn", "gpt2"])
def test_small_batches_tell_others_block_by_block(
    profiler: ProfileEngine, job: dict[str, Any]
) -> None:
    """In between and beyond: every size, place and event is that of a run at that batch size."""
    for told in measure(profiler, parse_job_spec(job)):
        assert str(told) == "all", told.batch_size
        assert told.blocks.num_blocks > 500
        assert told.num_events > 1000


def test_another_batch_size_costs_nothing(profiler: ProfileEngine) -> None:
    """The small runs are remembered; blocks have their categories and layers."""
    job = GPT2 | {"optimizer": {"name": "RMSprop"}}  # no other test has run it
    first = profiler.trace(parse_job_spec(job), find_gpu("a100-40"))
    again = profiler.trace(parse_job_spec(job | {"batch_size": 700}), find_gpu("rtx-3060"))

    assert again.seconds < 0.5 * first.seconds
    want = set(Category) - {Category.OTHER}  # which only snapshots have
    assert {label.category for label in again.timeline.labels} == want
    layers = {label.layer for label in again.timeline.labels}
    assert "GPT2LMHeadModel.transformer.0.attn.c_attn" in layers


def test_a_model_larger_than_this_machine_is_profiled_too(
    profiler: ProfileEngine, phantom: PhantomEngine
) -> None:
    """Eight billion parameters and Adam's state, 128 GB that nobody writes to, as on the phantom.

    The default limit of 8 GiB is far more than it takes.
    """
    job = {
        "model": {"source": "transformers", "name": "meta-llama/Llama-3.1-8B"},
        "input": {"sequence_length": 16},
        "batch_size": 2,
        "optimizer": {"name": "AdamW"},
        "iterations": 1,
    }

    ours, theirs = _replay(profiler, job), _replay(phantom, job)

    assert theirs.peak_allocated_bytes > 128 * 10**9
    assert ours.peak_allocated_bytes == pytest.approx(theirs.peak_allocated_bytes, rel=0.01)


class TestTooLittleMemory:
    """What the profile engine has no memory for on this machine names the engine that has."""

    def test_a_job_is_refused(self, run: Any, tmp_path: Path) -> None:
        """With what it took, the option, and the other engine, which answers it."""
        path = tmp_path / "job.json"
        model = {"source": "transformers", "name": "openai-community/gpt2-xl"}
        single = {"name": "Adam", "kwargs": {"foreach": False}}  # writes to every parameter
        job = {"model": model, "input": {"sequence_length": 8}, "optimizer": single}
        path.write_text(json.dumps(job | {"batch_size": 1, "iterations": 1}))
        command = ("estimate", path, "--gpu", "h100-80", "--host-memory", "2")

        refused = run(*command, "--engine", "profile")
        answered = run(*command, "--engine", "phantom", "--json")

        assert refused.status == 1
        assert "took more memory of this machine than 2.00 GiB, which is memgate's" in refused.err
        assert "--engine phantom" in refused.err
        assert "--host-memory GIB" in refused.err
        assert json.loads(answered.out)["engine"] == "phantom"

    def test_torch_may_notice_it(self, profiler: ProfileEngine) -> None:
        """There is no memory for one of its tensors."""
        job = CNN | {"input": {"shape": [3, 1 << 20, 1 << 20]}}

        with pytest.raises(HostMemoryError, match="use the phantom engine"):
            profiler.trace(parse_job_spec(job), find_gpu("a100-40"))

    def test_the_kernel_may_notice_it(self, run: Any, tmp_path: Path) -> None:
        """It ends what takes most when nothing is left."""
        script = tmp_path / "train.py"
        script.write_text("import os; os.kill(os.getpid(), 9)\n")

        ran = run("profile", script, "-o", tmp_path / "trace.json")

        assert ran.status == 1
        assert "signal SIGKILL" in ran.err
        assert "--engine phantom" in ran.err


def test_an_engine_is_found_by_name() -> None:
    """And an unknown one answered with those there are."""
    with start_engine("auto", RUNTIME) as engine:
        assert engine.name == "auto"
    with pytest.raises(
        InputError, match="engine is 'x': there is no such engine; there are: auto, phantom"
    ):
        start_engine("x", RUNTIME)


def test_what_the_phantom_runs_in_doubt_is_not_asked_of_the_profile_engine() -> None:
    """Sequencer's recurrent layers run by PyTorch's own kernels; on a GPU cuDNN has others."""
    sizes = {"layers": [1] * 4, "embed_dims": [8, 16, 16, 16], "hidden_sizes": [4] * 4}
    model = {"source": "timm", "name": "sequencer2d_s", "kwargs": sizes}
    spec = parse_job_spec(CNN | {"model": model})

    with start_engine("auto", RUNTIME) as engine:
        traced = engine.trace(spec, find_gpu("a100-40"))

    assert traced.engine == "phantom"
    assert "RECURRENT_LAYERS" in {doubt.code for doubt in traced.doubts}


def test_the_commands_take_the_engine(run: Any, tmp_path: Path) -> None:
    """Estimates say which engine made them; the accuracy of each can be measured."""
    path = tmp_path / "job.json"
    path.write_text(json.dumps(CNN))
    ran = run("estimate", path, "--gpu", "rtx-3060", "--engine", "profile", "--json")
    assert (ran.status, json.loads(ran.out)["engine"]) == (0, "profile")

    ran = run(
        *("accuracy", DATA / "peaks_sample.csv", "--engine", "profile", "--limit", "1", "--json")
    )
    assert json.loads(ran.out)["profile"]["rows"] == 1


class TestScripts:
    """``memgate profile``: people's own scripts, unchanged, on the CPU."""

    @pytest.mark.parametrize("name", ["plain_loop", "lightning_trainer", "hugging_face_trainer"])
    def test_a_script_that_says_cuda_is_profiled_on_the_cpu(
        self, run: Any, tmp_path: Path, phantom: PhantomEngine, name: str
    ) -> None:
        """Its trace needs on a GPU what the script itself needs on the phantom."""
        script, trace = DATA / "scripts" / f"{name}.py", tmp_path / "trace.json"

        ran = run("profile", script, "-o", trace)
        answer = json.loads(run("analyze", trace, "--gpu", "a100-40", "--json").out)

        assert (ran.status, ran.out.startswith(f"{trace}: 3 steps of {name}.py")) == (0, True)
        traced = record_script(RUNTIME, script, num_steps=3).traced
        theirs = replay(traced.timeline, parse_alloc_conf(""), AMPLE_BYTES).peak_reserved_bytes
        assert answer["peak_reserved_bytes"] == pytest.approx(theirs, rel=0.001)

    @pytest.mark.parametrize(
        ("name", "arguments", "num_steps"),
        [
            ("two_models", [], 3),
            ("transforms", [], 3),
            ("evaluation", ["steps"], 6),
            ("evaluation", ["epoch"], 7),
        ],
        ids=["two models", "transforms", "between steps", "after an epoch"],
    )
    def test_all_that_a_script_puts_on_the_gpu_counts(
        self,
        run: Any,
        tmp_path: Path,
        phantom: PhantomEngine,
        name: str,
        arguments: list[str],
        num_steps: int,
    ) -> None:
        """Every model and copies of it, evaluations after the last step; not the host's tensors.

        The phantom needs as many steps as there are in an epoch to see what follows it.
        """
        script, trace = DATA / "scripts" / f"{name}.py", tmp_path / "trace.json"

        ran = run("profile", script, *arguments, "-o", trace)
        answer = json.loads(run("analyze", trace, "--gpu", "a100-40", "--json").out)

        assert "3 steps of" in ran.out
        assert answer["decision"] == "admit"
        traced = record_script(RUNTIME, script, arguments, num_steps=num_steps).traced
        theirs = replay(traced.timeline, parse_alloc_conf(""), AMPLE_BYTES)
        assert answer["peak_reserved_bytes"] == pytest.approx(theirs.peak_reserved_bytes, rel=0.01)
        assert answer["peak_allocated_bytes"] == pytest.approx(
            theirs.peak_allocated_bytes, rel=0.01
        )

    @pytest.mark.parametrize(
        ("before", "after", "want_steps"),
        [
            ("", "raise ValueError('no more batches')", 3),
            ("", "import time; time.sleep(100)", 3),
            ("loader = range(2)", "", 2),
        ],
        ids=["fails", "takes long", "ends early"],
    )
    def test_what_follows_the_steps_is_looked_at_and_not_needed(
        self, run: Any, tmp_path: Path, before: str, after: str, want_steps: int
    ) -> None:
        """A script that has made its steps has its trace, whatever comes then."""
        script, trace = tmp_path / "train.py", tmp_path / "trace.json"
        script.write_text(f"""
import torch
model = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(model.parameters(), lr=1)
loader = torch.utils.data.DataLoader(torch.zeros(80, 64), 8)
{before}
for batch in loader:
    model(torch.zeros(8, 64)).sum().backward()
    optimizer.step()
{after}
""")

        ran = run("profile", script, "-o", trace)

        assert (ran.status, f"{want_steps} steps of train.py" in ran.out) == (0, True)

    def test_arguments_reach_the_script(self, run: Any, tmp_path: Path) -> None:
        """Without two dashes, too; an early end is fine if there was a step."""
        script, trace = DATA / "scripts" / "plain_loop.py", tmp_path / "trace.json"

        ran = run("profile", script, "--batch-size", "48", "--steps", "2", "-o", trace)

        assert "1 steps of plain_loop.py" in ran.out

    @pytest.mark.parametrize(
        ("text", "want_message"),
        [
            ("x = 1\n", "ended without a step of an optimizer of torch.optim"),
            ("raise ValueError('no data')\n", "failed in line 1: ValueError: no data"),
        ],
    )
    def test_a_script_that_trains_nothing_is_not_the_callers(
        self, run: Any, tmp_path: Path, text: str, want_message: str
    ) -> None:
        """One sentence, exit 1: the question was right."""
        script = tmp_path / "train.py"
        script.write_text(text)

        ran = run("profile", script, "-o", tmp_path / "trace.json")

        assert ran.status == 1
        assert want_message in ran.err


def test_a_gpu_without_kernels_is_refused_as_by_the_phantom(profiler: ProfileEngine) -> None:
    """A CPU would run the job all the same, and the answer would be of no use."""
    with pytest.raises(NoKernelsError, match=r"no kernels for GPUs of compute capability 7\.0"):
        profiler.trace(parse_job_spec(CNN), find_gpu("v100-32"))
