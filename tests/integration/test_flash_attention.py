"""Flash attention: the stand-in for flash-attn allocates what that package's source says."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from memgate.errors import InputError, JobFailedError, UnsupportedJobError
from memgate.gpus import find_gpu
from memgate.jobspec import parse_job_spec
from memgate.timeline import Alloc, Category
from memgate_worker.engines.host_client import host_environment, package_dirs
from memgate_worker.engines.phantom.engine import PhantomEngine, describe_device
from memgate_worker.engines.profile.engine import ProfileEngine
from memgate_worker.runtimes.runtime import read_runtimes
from memgate_worker.standins.flash import FLASH_ATTN_DIR

RUNTIME = read_runtimes()["torch-2.14"]
GPU = find_gpu("a100-40")
SCRIPT = Path(__file__).parents[1] / "data" / "flash_attention_script.py"

pytestmark = pytest.mark.skipif(
    not RUNTIME.is_installed, reason="runtime torch-2.14 is not built: make runtime"
)

HEADS, LAYERS, LENGTH, BATCH, DIM = 8, 2, 512, 8, 64
LLAMA: dict[str, Any] = {
    "model": {
        "source": "transformers",
        "class": "LlamaForCausalLM",
        "config": {
            "hidden_size": HEADS * DIM,
            "intermediate_size": 1024,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": HEADS,
            "num_key_value_heads": HEADS,
            "vocab_size": 1000,
        },
    },
    "input": {"tensors": {"input_ids": {"shape": [LENGTH], "dtype": "int64"}}},
    "batch_size": BATCH,
    "precision": "bf16",
}


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    """What each function allocates on a phantom A100."""
    roots = [str(package.parent) for package in package_dirs()]
    run = subprocess.run(
        [RUNTIME.python, SCRIPT, FLASH_ATTN_DIR],
        env=host_environment(RUNTIME) | describe_device(GPU) | {"PYTHONPATH": ":".join(roots)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
    return found


#: of the script's cases: 4 x 300 x 8 heads of 64 in bf16
ROWS = 4 * 300
TENSOR = ROWS * 8 * 64 * 2
#: 300 queries are 384 rows of blocks
PADDED_ROWS = 4 * 384
STATE = 16


def _kept(num_rows: int, tensor: int) -> int:
    return tensor + num_rows * 8 * 4 + STATE


def _backward(num_rows: int, dim: int = 64, parts: int = 1) -> int:
    """Return the fp32 that gradients of queries are summed in, and the sums of each row."""
    return num_rows * 8 * 4 + parts * num_rows * 8 * dim * 4


@pytest.mark.parametrize(
    ("case", "want_kept", "want_backward"),
    [
        ("dense", _kept(ROWS, TENSOR), 3 * TENSOR + _backward(PADDED_ROWS)),
        # a quarter of the keys and values, whose gradients come apart for each head of a group
        ("grouped", _kept(ROWS, TENSOR), int(1.5 * TENSOR) + _backward(PADDED_ROWS) + 2 * TENSOR),
        # 108 multiprocessors, 32 heads of the batch
        ("deterministic", _kept(ROWS, TENSOR), 3 * TENSOR + _backward(PADDED_ROWS, parts=4)),
        ("packed", _kept(ROWS, TENSOR), 3 * TENSOR + _backward(PADDED_ROWS)),
        ("keys packed", _kept(ROWS, TENSOR), 3 * TENSOR + _backward(PADDED_ROWS)),
        # 128 rows to spare for each sequence
        ("several lengths", _kept(ROWS, TENSOR), 3 * TENSOR + _backward(ROWS + 4 * 128)),
        ("lengths packed", _kept(ROWS, TENSOR), 3 * TENSOR + _backward(ROWS + 4 * 128)),
        # heads of 36 are padded to 40, all four tensors are kept so, and sums are of 64
        (
            "padded",
            _kept(ROWS, 4 * ROWS * 8 * 40 * 2),
            4 * ROWS * 8 * 40 * 2 + _backward(PADDED_ROWS),
        ),
        ("rotary", TENSOR + 2 * 300 * 16 * 4, TENSOR),
    ],
)
def test_bytes_are_those_of_arithmetic(
    measured: dict[str, Any], case: str, want_kept: int, want_backward: int
) -> None:
    """What is kept for the backward pass, and the most that it takes."""
    kept, peak, backward = measured[case]

    assert (kept, peak, backward) == (want_kept, want_kept, want_backward)


def test_few_queries_are_split_over_the_gpu(measured: dict[str, Any]) -> None:
    """Each split has an output of its own in fp32, while the forward pass runs."""
    kept, peak, _ = measured["split"]

    # 8 blocks of queries, 216 places, 16 blocks of keys
    assert kept == _kept(64, 64 * 8 * 64 * 2)
    assert peak == kept + 16 * 8 * 64 * 4 * (1 + 64)
    # one query of 16 heads in 2 groups is 8 queries of 2 heads
    assert measured["cache"] == 16 * 64 * 2 + 16 * 4 + 16 * 2 * 8 * 4 * (1 + 64)


def test_padding_is_taken_out_and_put_back(measured: dict[str, Any]) -> None:
    """As many rows as the mask has ones, with their cumulative lengths."""
    assert measured["unpadded"] == [[3, 8], [0, 2, 3], 2, [2, 1]]
    assert measured["padded again"] == [2, 3, 8]


def test_rotary_positions_have_tables(measured: dict[str, Any]) -> None:
    """A row for each position, half a head wide."""
    assert measured["table"] == [[300, 16], "torch.bfloat16"]


def _activations(engine: PhantomEngine, job: dict[str, Any]) -> int:
    """Return the bytes of all activations that a job ever allocates."""
    timeline = engine.trace(parse_job_spec(job), GPU).timeline
    return sum(
        event.size_bytes
        for event in timeline.events
        if isinstance(event, Alloc)
        and timeline.labels[event.block_id].category is Category.ACTIVATIONS
    )


def test_a_model_attends_by_flash(engine: PhantomEngine) -> None:
    """The same bytes as torch's own flash attention, but for 8 that torch keeps in each layer."""
    iterations = 2
    flash, torchs, eager = (
        _activations(engine, LLAMA | {"attention": attention, "iterations": iterations})
        for attention in ("flash", "sdpa", "eager")
    )

    assert torchs - flash == iterations * LAYERS * 8
    notes = [
        [note.code for note in engine.trace(parse_job_spec(job), GPU).notes]
        for attention in ("sdpa", "flash")
        for job in (LLAMA | {"attention": attention, "iterations": iterations},)
    ]
    assert notes == [[], ["FLASH_ATTN_STAND_IN"]]
    # what eager attention keeps is as large as all pairs of tokens
    assert eager - flash > iterations * LAYERS * BATCH * HEADS * LENGTH**2 * 2


def test_a_config_may_ask_for_it(engine: PhantomEngine) -> None:
    """By transformers' own key, which means the same."""
    model = LLAMA["model"]
    config = model["config"] | {"attn_implementation": "flash_attention_2"}
    by_config = _activations(engine, LLAMA | {"model": model | {"config": config}})

    assert by_config == _activations(engine, LLAMA | {"attention": "flash"})


def test_quantised_models_attend_in_16_bits(engine: PhantomEngine) -> None:
    """peft makes their norms fp32; transformers casts what flash-attn is given."""
    job = LLAMA | {"attention": "flash", "quantization": "nf4", "lora": {"rank": 8}}

    assert _activations(engine, job) > 0


def test_a_class_that_cannot_is_named_with_its_choices(engine: PhantomEngine) -> None:
    """Nothing is run with another implementation instead."""
    job = LLAMA | {"model": {"source": "transformers", "class": "DebertaForMaskedLM"}}
    spec = parse_job_spec(job | {"input": {"sequence_length": 16}, "attention": "flash"})

    with pytest.raises(InputError, match="DebertaForMaskedLM has no such implementation") as error:
        engine.trace(spec, GPU)

    assert "it has: auto, eager" in error.value.message


def test_a_gpu_without_kernels_is_named(engine: PhantomEngine) -> None:
    """On a T4 the job would die, and the answer is not a number."""
    with pytest.raises(JobFailedError, match=r"compute capability 7\.5.*use 'sdpa'"):
        engine.trace(parse_job_spec(LLAMA | {"attention": "flash"}), find_gpu("t4"))


def test_the_profile_engine_has_none() -> None:
    """It runs on the CPU."""
    with (
        ProfileEngine(RUNTIME) as engine,
        pytest.raises(UnsupportedJobError, match="attention: the profile engine"),
    ):
        engine.trace(parse_job_spec(LLAMA | {"attention": "flash"}), GPU)
