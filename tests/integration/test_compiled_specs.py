"""Fields of a spec that need more libraries: compile, liger, offload, torchao's optimizers.

What an extra of the runtime brings is tested where it is installed; where it is not, that the
answer names the command which adds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from memgate.errors import InputError, LibraryMissingError, NotModelledError, UnsupportedJobError
from memgate.gpus import GpuTarget, find_gpu
from memgate.jobspec import parse_job_spec
from memgate.timeline import Alloc
from memgate_worker.engines.phantom.engine import PhantomEngine
from memgate_worker.engines.profile.engine import ProfileEngine
from memgate_worker.engines.traced import TracedJob
from memgate_worker.runtimes.runtime import read_runtimes
from memgate_worker.verdicts import estimate_run
from tests.integration.recording import record_script

RUNTIME = read_runtimes()["torch-2.14"]
GPU = find_gpu("a100-40")
EXTRAS = (
    {extra.name for extra in RUNTIME.extras if RUNTIME.has_extra(extra)}
    if RUNTIME.is_installed
    else set()
)

pytestmark = pytest.mark.skipif(
    not RUNTIME.is_installed, reason="runtime torch-2.14 is not built: make runtime"
)

HIDDEN, INNER, LAYERS, VOCABULARY, LENGTH, BATCH = 256, 512, 2, 1024, 64, 4
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
    "input": {"tensors": {"input_ids": {"shape": [LENGTH], "dtype": "int64"}}},
    "batch_size": BATCH,
    "precision": "bf16",
    "optimizer": {"name": "AdamW"},
    "iterations": 3,
}
#: matrices: of each layer four of attention and three of the block after it, and both tables
NUM_MATRICES = LAYERS * 7 + 2
MATRICES = LAYERS * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * INNER) + 2 * VOCABULARY * HIDDEN
NORMS = (2 * LAYERS + 1) * HIDDEN
#: of the layers alone
LINEAR = LAYERS * (4 * HIDDEN * HIDDEN + 3 * HIDDEN * INNER)
ROWS = LAYERS * (5 * HIDDEN + 2 * INNER)

ALEXNET: dict[str, Any] = {
    "model": {"source": "torchvision", "name": "alexnet"},
    "input": {"shape": [3, 64, 64]},
    "batch_size": 64,
    "compile": True,
}
SCRIPT = """
import torch, torchvision
model = torch.compile(torchvision.models.alexnet().cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(4):
    images = torch.zeros(64, 3, 64, 64).to("cuda")
    labels = torch.zeros(64, dtype=torch.int64).to("cuda")
    outputs = model(images)
    loss = torch.nn.functional.cross_entropy(outputs, labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def needs(extra: str) -> pytest.MarkDecorator:
    """Skip a test where an extra is missing."""
    return pytest.mark.skipif(extra not in EXTRAS, reason=f"runtime torch-2.14 lacks {extra}")


@pytest.fixture(scope="module")
def engine() -> Iterator[PhantomEngine]:
    """One host for all."""
    with PhantomEngine(RUNTIME) as engine:
        yield engine


def _trace(engine: PhantomEngine, job: dict[str, Any]) -> TracedJob:
    return engine.trace(parse_job_spec(job), GPU)


def _peak(traced: TracedJob) -> int:
    return estimate_run(traced, GpuTarget(gpu=GPU)).peak_allocated_bytes


def _bytes(engine: PhantomEngine, job: dict[str, Any]) -> dict[str, int]:
    return dict(estimate_run(_trace(engine, job), GpuTarget(gpu=GPU)).breakdown)


@pytest.mark.parametrize(
    ("change", "extra", "want_words"),
    [
        ({"compile": True}, "triton", "compile needs triton"),
        ({"liger": True}, "triton", "liger needs triton"),
        ({"offload": {"optimizer": True}}, "torchao", "offload.optimizer needs torchao"),
        ({"optimizer": {"name": "torchao.AdamW8bit"}}, "torchao", "optimizer needs torchao"),
    ],
)
def test_a_missing_extra_is_named_with_its_command(
    engine: PhantomEngine, change: dict[str, Any], extra: str, want_words: str
) -> None:
    """The operator's fault, and never an answer for another job."""
    if extra in EXTRAS:
        pytest.skip(f"runtime torch-2.14 has {extra}")
    with pytest.raises(LibraryMissingError, match=want_words) as raised:
        _trace(engine, LLAMA | change)

    assert f"memgate runtimes install torch-2.14 --with {extra}" in raised.value.message


@pytest.mark.parametrize(
    ("given", "error", "want_words"),
    [
        ({"mode": "reduce-overhead"}, NotModelledError, "compile.mode is 'reduce-overhead'"),
        ({"mode": "max-autotune"}, NotModelledError, "max-autotune-no-cudagraphs are known"),
        ({"backend": "cudagraphs"}, NotModelledError, "compile.backend is 'cudagraphs'"),
        ({"backend": "induktor"}, InputError, "did you mean 'inductor'?"),
    ],
)
def test_what_cannot_be_compiled_is_refused_by_name(
    engine: PhantomEngine, given: dict[str, Any], error: type[Exception], want_words: str
) -> None:
    """CUDA graphs have memory of their own; what does not exist has a near name."""
    with pytest.raises(error, match=want_words.replace("?", r"\?")):
        _trace(engine, ALEXNET | {"compile": given})


@pytest.mark.parametrize(
    "change", [{"compile": True}, {"liger": True}, {"offload": {"activations": True}}]
)
def test_the_profile_engine_refuses_what_is_of_a_gpu(change: dict[str, Any]) -> None:
    """On a CPU all of it is done otherwise."""
    with (
        ProfileEngine(RUNTIME) as engine,
        pytest.raises(UnsupportedJobError, match=f"{next(iter(change))}: the profile engine"),
    ):
        engine.trace(parse_job_spec(LLAMA | change), GPU)


def test_activations_wait_in_the_hosts_memory(engine: PhantomEngine) -> None:
    """Those of one layer after the other come back, and all else stays where it is."""
    offloaded, plain = (
        _bytes(engine, LLAMA | {"batch_size": 64, "offload": {"activations": given}})
        for given in (True, False)
    )

    assert offloaded["activations"] < plain["activations"] / 2
    assert offloaded["optimizer_state"] == plain["optimizer_state"] == 2 * 2 * (MATRICES + NORMS)


@needs("torchao")
def test_the_state_of_an_optimizer_waits_in_the_hosts_memory(engine: PhantomEngine) -> None:
    """But for that of parameters below 4,096 elements, which torchao leaves where they are."""
    found = _bytes(engine, LLAMA | {"offload": {"optimizer": True}})

    assert found["optimizer_state"] == 2 * 2 * NORMS + (2 * LAYERS + 1) * 4
    assert found["gradients"] == 2 * (MATRICES + NORMS)


@needs("liger")
def test_liger_fuses_the_output_layer_with_its_loss(engine: PhantomEngine) -> None:
    """With a large vocabulary, no block is as large as all logits."""
    model = LLAMA["model"]
    config = model["config"] | {"vocab_size": 32 * VOCABULARY}
    job = LLAMA | {"model": model | {"config": config}, "batch_size": 16}
    logits = 16 * LENGTH * 32 * VOCABULARY * 2
    largest = {
        liger: max(
            event.size_bytes
            for event in _trace(engine, job | {"liger": liger}).timeline.events
            if isinstance(event, Alloc)
        )
        for liger in (True, False)
    }

    assert largest[True] < logits < largest[False]


@needs("liger")
def test_liger_without_layers_for_a_model_is_refused(engine: PhantomEngine) -> None:
    """With the kinds of models that it has some for."""
    job = LLAMA | {"model": {"source": "transformers", "class": "BertForMaskedLM"}, "liger": True}
    with pytest.raises(InputError, match="liger-kernel has no layers for BertForMaskedLM") as error:
        _trace(engine, job | {"input": {"sequence_length": 16}})

    assert "llama" in error.value.message


@needs("triton")
def test_a_compiled_spec_is_a_compiled_script(engine: PhantomEngine, tmp_path: Path) -> None:
    """The same peak to the byte, which is not that of the eager job."""
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    compiled = _trace(engine, ALEXNET)
    eager = _trace(engine, ALEXNET | {"compile": False})
    script = record_script(RUNTIME, path, num_steps=5)

    assert script.num_steps == 4
    assert _peak(compiled) == _peak(script.traced) != _peak(eager)
    assert compiled.doubts == ()


@needs("triton")
@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["hf", "lightning"])
def test_a_trainer_compiles_the_model(engine: PhantomEngine, trainer: str) -> None:
    """What the eager job keeps of each operator is not kept by the compiled one."""
    eager = _trace(engine, LLAMA | {"trainer": trainer})
    compiled = _trace(engine, LLAMA | {"trainer": trainer, "compile": True})

    assert _peak(compiled) < _peak(eager)


@needs("torchao")
def test_a_host_stays_warm_beside_torchao(engine: PhantomEngine) -> None:
    """torchao uses CUDA while it is imported, so nothing that is imported for a job may do it."""
    host = engine._host._process.pid
    _trace(engine, LLAMA)

    libraries = Path(f"/proc/{host}/maps").read_text()

    assert "libtorch_cpu" in libraries  # a host that imports nothing for its jobs has no torch


@needs("torchao")
@pytest.mark.parametrize(
    ("method", "want_bytes"),
    [
        # a scale of 4 bytes and a zero of one for each row
        ("int8", LINEAR + 5 * ROWS),
        ("fp8", LINEAR + 4 * ROWS),
        # a scale of a byte for 64 weights, one of two for 256 scales, their mean, and 16 values
        ("nf4", LINEAR // 2 + LINEAR // 64 + LINEAR // 64 // 256 * 2 + LAYERS * 7 * (2 + 16 * 2)),
    ],
)
def test_weights_of_torchao_are_those_of_arithmetic(
    engine: PhantomEngine, method: str, want_bytes: int
) -> None:
    """Both tables and the norms stay in bf16, and only the adapter has gradients."""
    lora = {"rank": 8, "target_modules": ["q_proj", "v_proj"]}
    quantization = {"method": method, "library": "torchao"}
    found = _bytes(engine, LLAMA | {"lora": lora, "quantization": quantization})

    adapter = LAYERS * 2 * 2 * 8 * HIDDEN
    frequencies = HIDDEN // 4 // 2 * 4
    others = 2 * (2 * VOCABULARY * HIDDEN + NORMS)
    assert found["gradients"] == 4 * adapter
    assert found["parameters"] == want_bytes + others + 4 * adapter + frequencies


@needs("torchao")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "want_bytes"),
    [
        # two bytes each, a scale for 256, tables of 256 values for each matrix
        ("AdamW8bit", 2 * MATRICES + 2 * MATRICES // 256 * 4 + NUM_MATRICES * 2 * 256 * 4),
        # half as much, a scale for 128, tables of 16 values
        ("AdamW4bit", MATRICES + 2 * MATRICES // 128 * 4 + NUM_MATRICES * 2 * 16 * 4),
        ("AdamWFp8", 2 * MATRICES + 2 * MATRICES // 256 * 4),
    ],
)
def test_small_states_are_those_of_arithmetic(
    engine: PhantomEngine, name: str, want_bytes: int
) -> None:
    """The norms are too small, and have states of their own type."""
    found = _bytes(engine, LLAMA | {"optimizer": {"name": f"torchao.{name}"}})

    assert found["optimizer_state"] == want_bytes + 2 * 2 * NORMS
