"""Adapters, quantised weights and small optimizers: bytes as arithmetic has them."""

from __future__ import annotations

from typing import Any

import pytest

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.replay import replay
from memgate.errors import InputError, LibraryMissingError, UnsupportedJobError
from memgate.gpus import GpuTarget, find_gpu
from memgate.jobspec import parse_job_spec
from memgate_worker.engines.phantom.engine import PhantomEngine
from memgate_worker.engines.profile.engine import ProfileEngine
from memgate_worker.runtimes.runtime import read_runtimes
from memgate_worker.verdicts import estimate_run

RUNTIME = read_runtimes()["torch-2.14"]
GPU = find_gpu("a100-40")

HIDDEN, INNER, LAYERS, VOCABULARY = 512, 1024, 2, 1000
LLAMA = {
    "model": {
        "source": "transformers",
        "class": "LlamaForCausalLM",
        "config": {
            "hidden_size": HIDDEN,
            "intermediate_size": INNER,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 8,
            "num_key_value_heads": 8,
            "vocab_size": VOCABULARY,
        },
    },
    "input": {"sequence_length": 128},
    "batch_size": 4,
    "precision": "bf16",
    "optimizer": {"name": "AdamW"},
}
RANK = 8
LORA = {"lora": {"rank": RANK, "target_modules": ["q_proj", "v_proj"]}}

#: the matrices that are packed: of each layer four of attention, three of the block after it
MATRICES = LAYERS * 7
LINEAR = LAYERS * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * INNER)
#: which stay as they are: embeddings, output layer, norms
OTHERS = 2 * VOCABULARY * HIDDEN + (2 * LAYERS + 1) * HIDDEN
#: the frequencies of the rotary positions
BUFFER = HIDDEN // 8 // 2 * 4
#: the 16 values that 4 bits can mean, beside each matrix
TABLE = 16 * 4
ADAPTER = LAYERS * 2 * 2 * RANK * HIDDEN

pytestmark = pytest.mark.skipif(
    not RUNTIME.is_installed, reason="runtime torch-2.14 is not built: make runtime"
)


def _bytes(engine: PhantomEngine, job: dict[str, Any]) -> dict[str, int]:
    """Return what lives by category when a job needs the most."""
    traced = engine.trace(parse_job_spec(job), GPU)
    return dict(estimate_run(traced, GpuTarget(gpu=GPU)).breakdown)


def test_lora_fa_trains_one_matrix_of_two(engine: PhantomEngine) -> None:
    """peft's LoRA-FA freezes the first matrix: no gradient, no state, and its input is not kept."""
    plain = _bytes(engine, LLAMA | LORA)
    found = _bytes(engine, LLAMA | LORA | {"optimizer": {"name": "peft.LoraFAOptimizer"}})

    assert found["optimizer_state"] == 4 * ADAPTER
    assert found["parameters"] == plain["parameters"]
    assert found["activations"] < plain["activations"]


def test_lora_fa_needs_lora(engine: PhantomEngine) -> None:
    """Without an adapter there is nothing that it could train."""
    with pytest.raises(InputError, match="adapter of LoRA"):
        _bytes(engine, LLAMA | {"optimizer": {"name": "peft.LoraFAOptimizer"}})


def test_an_adapter_may_stay_in_16_bits(engine: PhantomEngine) -> None:
    """peft makes an adapter's weights 32 bits wide, unless it is told to leave them."""
    lora = LORA["lora"] | {"kwargs": {"autocast_adapter_dtype": False}}
    found = _bytes(engine, LLAMA | {"lora": lora})

    assert found["optimizer_state"] == 2 * 2 * ADAPTER


def test_adalora_weighs_its_weights(engine: PhantomEngine) -> None:
    """After each step AdaLoRA keeps three more numbers for each weight of its two matrices."""
    lora = LORA["lora"] | {"method": "adalora", "rank": None}
    lora |= {"kwargs": {"init_r": RANK, "total_step": 100, "tinit": 50, "tfinal": 10}}

    kept = _left(engine, LLAMA | {"lora": lora}) - _left(engine, LLAMA | LORA)

    # beside them, each matrix has a diagonal, a mask and a number of its rank
    assert 3 * 4 * ADAPTER <= kept <= 3 * 4 * ADAPTER + LAYERS * 2 * 16 * 512


def _left(engine: PhantomEngine, job: dict[str, Any]) -> int:
    """Return what a job holds when its last step begins."""
    traced = engine.trace(parse_job_spec(job), GPU)
    begin = max(mark.event_index for mark in traced.marks if mark.step is not None)
    return replay(traced.timeline, parse_alloc_conf(""), 1 << 40).allocated_series[begin - 1]


def test_an_adapter_alone_is_trained(engine: PhantomEngine) -> None:
    """Weights of the model in bf16 without gradients; those of the adapter in fp32."""
    found = _bytes(engine, LLAMA | LORA)

    assert found["gradients"] == 4 * ADAPTER
    assert found["optimizer_state"] == 2 * 4 * ADAPTER
    assert found["parameters"] == 2 * (LINEAR + OTHERS) + 4 * ADAPTER + BUFFER


def test_nf4_packs_two_weights_to_a_byte(engine: PhantomEngine) -> None:
    """A scale for 64 of them; what is not packed becomes fp32, as peft prepares it."""
    found = _bytes(engine, LLAMA | LORA | {"quantization": "nf4"})

    assert found["gradients"] == 4 * ADAPTER
    scales = LINEAR // 64 * 4
    packed = LINEAR // 2 + scales + MATRICES * TABLE
    assert found["parameters"] == packed + 4 * (OTHERS + ADAPTER) + BUFFER


def test_double_quantisation_packs_the_scales(engine: PhantomEngine) -> None:
    """A byte for each of them, and a scale for 256."""
    found = _bytes(engine, LLAMA | LORA | {"quantization": {"method": "nf4", "double": True}})

    scales = LINEAR // 64 + LINEAR // 64 // 256 * 4
    beside = MATRICES * (TABLE + 256 * 4 + 4)  # tables of both types, and what is added
    packed = LINEAR // 2 + scales + beside
    assert found["parameters"] == packed + 4 * (OTHERS + ADAPTER) + BUFFER


def test_8_bits_for_each_weight(engine: PhantomEngine) -> None:
    """And a scale for each row."""
    found = _bytes(engine, LLAMA | LORA | {"quantization": "int8"})

    rows = LAYERS * (5 * HIDDEN + 2 * INNER)
    assert found["parameters"] == LINEAR + 4 * rows + 4 * (OTHERS + ADAPTER) + BUFFER


def test_adam_in_8_bits(engine: PhantomEngine) -> None:
    """Two bytes for each weight, two scales for 256, and two tables of 256 for all."""
    optimizer = {"name": "bitsandbytes.AdamW8bit", "kwargs": {"min_8bit_size": 16}}
    found = _bytes(engine, LLAMA | LORA | {"optimizer": optimizer})

    scales = 2 * ADAPTER // 256 * 4
    assert found["optimizer_state"] == 2 * ADAPTER + scales + 2 * 256 * 4


@pytest.mark.parametrize(
    "lora",
    [
        {"method": "dora", "rank": 4},
        {"method": "ia3"},
        {"method": "adalora", "kwargs": {"total_step": 100}},
        {"method": "vera", "rank": 16, "target_modules": ["q_proj"]},
        {"method": "prefix_tuning", "kwargs": {"num_virtual_tokens": 20}},
        {"rank": 4, "target_modules": "all-linear", "dropout": 0.1},
    ],
    ids=lambda lora: lora.get("method", "all-linear"),
)
def test_methods_of_peft_by_name(engine: PhantomEngine, lora: dict[str, Any]) -> None:
    """What is trained is small beside the model."""
    found = _bytes(engine, LLAMA | {"lora": lora})

    assert 0 < found["optimizer_state"] < 2 * found["parameters"] / 4


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lora": {"method": "dorra"}}, "lora.method .*did you mean 'dora'"),
        ({"lora": {"kwargs": {"use_dorra": True}}}, "lora.kwargs.use_dorra .*'use_dora'"),
        ({"lora": {"method": "ia3", "rank": 8}}, "lora.rank is 8: the method ia3 has none"),
        ({"lora": {"target_modules": ["q"]}}, "LlamaForCausalLM has no layer of this name"),
        ({"lora": {"target_modules": ["q_proj", "v_porj"]}}, "'v_porj'.*did you mean 'v_proj'"),
        ({"lora": {"target_modules": "all_linear"}}, "did you mean 'all-linear'"),
        ({"lora": {"target_modules": "(q"}}, "has no layer of this name"),
        ({"optimizer": {"name": "Adamm"}}, "did you mean 'Adam"),
        ({"optimizer": {"name": "bitsandbytes.AdamW8bits"}}, "'bitsandbytes.AdamW8bit'"),
        ({"optimizer": {"name": "apex.FusedAdam"}}, "torch.optim, bitsandbytes or torchao"),
        (
            {"optimizer": {"name": "AdamW", "companion": {"name": "SGD"}}},
            "optimizer.companion .*AdamW takes all parameters",
        ),
    ],
    ids=str,
)
def test_mistakes_are_told(engine: PhantomEngine, change: dict[str, Any], words: str) -> None:
    """With the field and a near name."""
    with pytest.raises(InputError, match=words):
        engine.trace(parse_job_spec(LLAMA | change), GPU)


def test_muon_takes_matrices_and_a_companion_the_rest(engine: PhantomEngine) -> None:
    """One buffer for hidden matrices; two of AdamW for embeddings, output layer and norms."""
    found = _bytes(engine, LLAMA | {"optimizer": {"name": "Muon"}})

    assert found["optimizer_state"] == pytest.approx(2 * LINEAR + 2 * 2 * OTHERS, rel=0.001)


def test_the_history_of_lbfgs_is_full(engine: PhantomEngine) -> None:
    """A step calls the model; pairs of vectors are kept until there are as many as it may have."""
    small = {"source": "torchvision", "name": "squeezenet1_1"}
    job = {
        "model": small,
        "input": {"shape": [3, 64, 64]},
        "batch_size": 2,
        "optimizer": {"name": "LBFGS", "kwargs": {"history_size": 5, "max_iter": 2}},
    }
    weights = 4 * 1_235_496

    found = _bytes(engine, job)

    assert 2 * 5 * weights <= found["optimizer_state"] <= (2 * 5 + 4) * weights + 1024


def test_what_a_runtime_lacks_is_the_operators(engine: PhantomEngine) -> None:
    """Never a wrong answer, nor the job's fault."""
    job = parse_job_spec(LLAMA | {"optimizer": {"name": "torchao.AdamW8bit"}})

    with pytest.raises(LibraryMissingError, match="needs torchao, which the job's runtime lacks"):
        engine.trace(job, GPU)


def test_the_profile_engine_refuses_them() -> None:
    """They run otherwise on a CPU."""
    with (
        ProfileEngine(RUNTIME) as engine,
        pytest.raises(UnsupportedJobError, match="lora: the profile engine"),
    ):
        engine.trace(parse_job_spec(LLAMA | LORA), GPU)
