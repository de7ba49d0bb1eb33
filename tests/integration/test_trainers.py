"""The trainers of libraries run on the phantom: their phases, their bytes, their differences."""

from __future__ import annotations

from typing import Any

import pytest

from memgate.errors import (
    InputError,
    LibraryMissingError,
    MemgateError,
    UnsupportedJobError,
)
from memgate.gpus import GpuTarget, find_gpu
from memgate.jobspec import parse_job_spec
from memgate.report import Estimate
from memgate.timeline import Alloc, Category
from memgate_worker.engines.phantom.engine import PhantomEngine
from memgate_worker.engines.profile.engine import ProfileEngine
from memgate_worker.engines.traced import TracedJob
from memgate_worker.runtimes.runtime import read_runtimes
from memgate_worker.verdicts import estimate_run

RUNTIME = read_runtimes()["torch-2.14"]
GPU = find_gpu("a100-40")

HIDDEN, INNER, LAYERS, VOCABULARY = 256, 512, 2, 1024
LENGTH, BATCH = 128, 4
LLAMA: dict[str, Any] = {
    "model": {
        "source": "transformers",
        "class": "LlamaForCausalLM",
        "config": {
            "hidden_size": HIDDEN,
            "intermediate_size": INNER,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "vocab_size": VOCABULARY,
        },
    },
    "input": {"sequence_length": LENGTH},
    "batch_size": BATCH,
}
ADAMW = {"optimizer": {"name": "AdamW"}}
WEIGHTS = (
    LAYERS * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * INNER + 2 * HIDDEN)
    + 2 * VOCABULARY * HIDDEN
    + HIDDEN
)
#: the frequencies of the rotary positions, twice
BUFFER = 2 * (HIDDEN // 4 // 2 * 4)
#: embeddings, output layer, nine tensors of each layer, the last norm
TENSORS = 2 + LAYERS * 9 + 1

RESNET: dict[str, Any] = {
    "model": {"source": "torchvision", "name": "resnet18"},
    "input": {"shape": [3, 32, 32]},
    "batch_size": 2,
}

pytestmark = pytest.mark.skipif(
    not RUNTIME.is_installed, reason="runtime torch-2.14 is not built: make runtime"
)


class Asked:
    """Answers about jobs; the engine runs each job once."""

    def __init__(self, engine: PhantomEngine) -> None:
        """Ask an engine."""
        self._engine = engine

    def __call__(self, job: dict[str, Any]) -> tuple[TracedJob, Estimate]:
        """Return a job's run, and what it says about a GPU."""
        traced = self._engine.trace(parse_job_spec(job), GPU)
        return traced, estimate_run(traced, GpuTarget(gpu=GPU))


@pytest.fixture(scope="module")
def ask(engine: PhantomEngine) -> Asked:
    """One host for all."""
    return Asked(engine)


def _total(traced: TracedJob, category: Category) -> int:
    """Return the bytes of all blocks that have a category, which live until the end."""
    timeline = traced.timeline
    sizes = {one.block_id: one.size_bytes for one in timeline.events if isinstance(one, Alloc)}
    return sum(
        sizes[block_id] for block_id, label in enumerate(timeline.labels) if label[0] is category
    )


@pytest.mark.parametrize("trainer", ["hf", "lightning"])
def test_bytes_are_those_of_arithmetic(ask: Asked, trainer: str) -> None:
    """Weights and both states of AdamW; what a trainer makes of an optimizer is seen, too."""
    traced, said = ask({**LLAMA, **ADAMW, "trainer": trainer})

    assert traced.num_parameters == WEIGHTS
    assert said.breakdown["parameters"] == 4 * WEIGHTS + BUFFER
    # Trainer takes the fused AdamW, which counts steps on the GPU
    counters = 4 * TENSORS if trainer == "hf" else 0
    assert said.breakdown["optimizer_state"] == 8 * WEIGHTS + counters
    assert said.breakdown["workspace"] > 0
    iterations = 4
    assert _total(traced, Category.GRADIENTS) == 4 * WEIGHTS * iterations


def test_trainer_drops_gradients_and_outputs_where_a_plain_loop_keeps_them(ask: Asked) -> None:
    """So the same job takes other memory with another trainer."""
    _, plain = ask({**LLAMA, **ADAMW})
    _, hf = ask({**LLAMA, **ADAMW, "trainer": "hf"})

    assert (plain.breakdown["gradients"], hf.breakdown["gradients"]) == (4 * WEIGHTS, 0)
    assert hf.peak_bytes < plain.peak_bytes


@pytest.mark.parametrize("trainer", ["plain", "hf", "lightning"])
def test_evaluations_and_checkpoints_are_phases(ask: Asked, trainer: str) -> None:
    """Between steps; a large evaluation is seen to be one."""
    extra = {"eval": {"batch_size": 16}, "save": True}
    _, said = ask({**LLAMA, **ADAMW, "trainer": trainer, **extra})

    assert list(said.phases) == ["load", "train", "evaluate", "save"]
    resident = 12 * WEIGHTS
    assert said.phases["save"] > resident
    assert said.phases["evaluate"] > resident + 16 * LENGTH * VOCABULARY * 4


@pytest.mark.parametrize("trainer", ["plain", "hf", "lightning"])
def test_an_evaluation_may_generate(ask: Asked, trainer: str) -> None:
    """With a cache that grows by a token at a time, as many as asked for."""
    job = {**LLAMA, **ADAMW, "trainer": trainer, "eval": {"generate": 3, "batch_size": 2}}
    traced, said = ask(job)

    assert "evaluate" in said.phases
    sizes = {one.size_bytes for one in traced.timeline.events if isinstance(one, Alloc)}
    caches = [2 * (LENGTH + tokens) * HIDDEN * 4 for tokens in range(4)]
    assert [one in sizes for one in caches] == [True, True, True, False]


@pytest.mark.parametrize("trainer", ["plain", "lightning"])
def test_an_average_of_the_weights_is_labelled_as_weights(ask: Asked, trainer: str) -> None:
    """It is not a batch, and not counted among the parameters that are trained."""
    job = {**RESNET, "trainer": trainer}
    without, said_without = ask(job)
    traced, said = ask({**job, "ema": True})

    added = said.breakdown["parameters"] - said_without.breakdown["parameters"]
    assert added >= 4 * without.num_parameters
    assert said.breakdown["batch"] == said_without.breakdown["batch"]
    assert traced.num_parameters == without.num_parameters


@pytest.mark.parametrize("trainer", ["plain", "hf"])
def test_packed_sequences_need_no_mask(ask: Asked, trainer: str) -> None:
    """Padding forces one, as large as the squared length of each sample."""
    padded, _ = ask({**LLAMA, **ADAMW, "trainer": trainer})
    packed, _ = ask({**LLAMA, **ADAMW, "trainer": trainer, "packing": True})

    mask = BATCH * LENGTH * LENGTH
    sizes = [
        {one.size_bytes for one in traced.timeline.events if isinstance(one, Alloc)}
        for traced in (padded, packed)
    ]
    assert mask in sizes[0]
    assert mask not in sizes[1]


def test_trainer_uses_what_it_is_asked_for(ask: Asked) -> None:
    """Casts, accumulation, checkpointing, an adapter beside quantised weights, 8-bit states."""
    job = {
        **LLAMA,
        "trainer": "hf",
        "precision": "amp-bf16",
        "gradient_accumulation_steps": 2,
        "gradient_checkpointing": True,
        "lora": {"rank": 4, "target_modules": ["q_proj"]},
        "quantization": {"method": "nf4", "compute": "bf16"},
        "optimizer": {"name": "bitsandbytes.AdamW8bit"},
    }
    _, said = ask(job)

    adapter = LAYERS * 2 * 4 * HIDDEN
    # too small for 8 bits: bitsandbytes keeps states of fewer than 4096 values in 32
    assert said.breakdown["optimizer_state"] == 8 * adapter


@pytest.mark.parametrize(
    ("change", "want_error", "want_message"),
    [
        (
            {"optimizer": {"name": "LBFGS"}},
            UnsupportedJobError,
            "optimizer: transformers' Trainer has one optimizer",
        ),
        (
            {"optimizer": {"name": "AdamW", "kwargs": {"wight_decay": 0.1}}},
            InputError,
            "did you mean 'weight_decay'",
        ),
        (
            {"trainer": "lightning", "optimizer": {"name": "Muon"}},
            UnsupportedJobError,
            "use the trainer 'plain'",
        ),
        (
            {
                "model": {
                    "source": "transformers",
                    "class": "ViTForImageClassification",
                    "config": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2},
                },
                "packing": True,
            },
            InputError,
            "sequence",
        ),
    ],
    ids=["a closure", "a typo", "a companion", "packed images"],
)
def test_what_a_trainer_cannot_do_is_refused(
    ask: Asked, change: dict[str, Any], want_error: type[MemgateError], want_message: str
) -> None:
    """By name, and never by another job in its place."""
    with pytest.raises(want_error) as raised:
        ask({**LLAMA, "trainer": "hf", **change})

    assert want_message in raised.value.message


def test_sft_trainer_is_an_extra(ask: Asked) -> None:
    """Where it is installed it runs; where not, the operator is told how to add it."""
    job = {**LLAMA, "trainer": "trl-sft", "packing": True, "precision": "bf16"}
    if not (RUNTIME.site_packages / "trl").is_dir():
        with pytest.raises(LibraryMissingError, match=r"install torch-2\.14 --with trl"):
            ask(job)
        return
    traced, said = ask({**job, "eval": {}})

    assert traced.num_parameters == WEIGHTS
    assert said.breakdown["parameters"] == 2 * WEIGHTS + BUFFER // 2
    assert "evaluate" in said.phases
    with pytest.raises(InputError, match="trains causal language models"):
        ask({**job, "model": {"source": "transformers", "class": "BertForMaskedLM"}})


def test_the_profile_engine_refuses_trainers() -> None:
    """A CPU runs another loop; ``auto`` has nothing to fall back to."""
    job = parse_job_spec({**LLAMA, "trainer": "hf", "save": True})

    with (
        ProfileEngine(RUNTIME) as engine,
        pytest.raises(UnsupportedJobError, match="trainer and save: the profile engine"),
    ):
        engine.trace(job, GPU)
