"""Jobs that the phantom engine cannot run: whose fault it is, and that it ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memgate.errors import (
    Fault,
    HostMemoryError,
    InputError,
    NoKernelsError,
    RuntimeBrokenError,
    TimeLimitError,
    UnsupportedJobError,
)
from memgate.gpus import GpuTarget, find_gpu
from memgate.jobspec import parse_job_spec
from memgate.units import MIB
from memgate_worker.engines.phantom.engine import (
    PhantomEngine,
)
from memgate_worker.engines.traced import TracedJob
from memgate_worker.limits import RunLimits
from memgate_worker.runtimes.runtime import read_runtimes
from memgate_worker.verdicts import estimate_run

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


@pytest.mark.parametrize(
    ("change", "want_message"),
    [
        (
            {"model": {"source": "torchvision", "name": "resnet1"}},
            "model.name is 'resnet1': torchvision has no such model; did you mean 'resnet18'",
        ),
        (
            {"model": {"source": "transformers", "name": "openai-community/gpt"}},
            "it is not in the table of public models; did you mean 'openai-community/gpt2'",
        ),
        ({"optimizer": {"name": "Magic"}}, "torch.optim has no such optimizer"),
        ({"optimizer": {"kwargs": {"speed": 1}}}, "optimizer.kwargs.speed is 1: this optimizer"),
        (
            {"model": {"source": "timm", "name": "resnet18", "kwargs": {"in_chans": "many"}}},
            "model is 'resnet18': timm cannot build it from {'in_chans': 'many'}: ",
        ),
    ],
)
def test_a_job_that_cannot_be_built_is_the_callers(
    engine: PhantomEngine, change: dict[str, Any], want_message: str
) -> None:
    """What is wrong with it, in a sentence."""
    with pytest.raises(InputError) as raised:
        _trace(engine, RESNET | change)

    assert want_message in raised.value.message


def test_a_mistake_leaves_the_process_that_found_it_whole(engine: PhantomEngine) -> None:
    """Field, value, rule and near name: doors show them apart."""
    model = GPT2["model"] | {"config": {"n_layers": 96}}

    with pytest.raises(InputError) as raised:
        _trace(engine, GPT2 | {"model": model})

    (mistake,) = raised.value.mistakes
    assert (mistake.field, mistake.value) == ("model.config.n_layers", "96")
    assert mistake.near == ("n_layer",)


def test_what_cannot_be_run_yet_is_ours(engine: PhantomEngine) -> None:
    """Not the caller's mistake: nothing needs to be mended."""
    with pytest.raises(UnsupportedJobError, match="cannot run this yet with distributed"):
        _trace(engine, RESNET | {"distributed": {"strategy": "ddp", "world_size": 2}, "ema": True})


def test_a_job_that_fails_takes_only_itself_along(engine: PhantomEngine) -> None:
    """The engine goes on with the next job."""
    with pytest.raises(UnsupportedJobError, match="RuntimeError"):
        _trace(engine, RESNET | {"input": {"shape": [5, 64, 64]}})

    assert _trace(engine, GPT2 | {"batch_size": 6}).seconds > 0


@pytest.mark.parametrize(
    "change",
    [
        {"optimizer": {"name": "LBFGS"}, "precision": "amp-fp16"},
        {"optimizer": {"name": "SparseAdam"}},
        {"gradient_checkpointing": True},
    ],
    ids=["lbfgs", "sparse", "checkpointing"],
)
def test_what_our_own_loop_cannot_train_is_ours(
    engine: PhantomEngine, change: dict[str, Any]
) -> None:
    """Neither the caller's mistake nor the job's failure: it is not known how it is trained."""
    with pytest.raises(UnsupportedJobError, match=r"memgate's own|scaler of gradients") as raised:
        _trace(engine, RESNET | change)

    assert raised.value.fault is Fault.UNSUPPORTED


def test_a_job_that_does_not_end_is_ended(engine: PhantomEngine) -> None:
    """The limit is ours: it is named, with what raises it."""
    slow = RESNET | {"iterations": 64, "model": {"source": "torchvision", "name": "resnet152"}}

    with pytest.raises(
        TimeLimitError, match=r"longer than 1 s,.*--timeout.*MEMGATE_JOB_TIMEOUT_SECONDS"
    ):
        engine.trace(parse_job_spec(slow), find_gpu("a100-40"), limits=RunLimits(seconds=1))


def test_a_job_that_takes_too_much_of_the_machine_is_ended(engine: PhantomEngine) -> None:
    """The limit is ours: it is named, with what raises it."""
    with pytest.raises(
        HostMemoryError, match=r"than 64\.00 MiB,.*--host-memory.*MEMGATE_JOB_MEMORY_BYTES"
    ):
        engine.trace(
            parse_job_spec(RESNET | {"iterations": 64, "batch_size": 7}),
            find_gpu("a100-40"),
            limits=RunLimits(memory_bytes=64 * MIB),
        )


def test_a_host_that_dies_says_why(tmp_path: Path) -> None:
    """A runtime without its stand-ins: the loader's own words, and the command that mends it."""
    for part in RUNTIME.home.iterdir():
        if part != RUNTIME.stubs:
            (tmp_path / part.name).symlink_to(part)

    with (
        PhantomEngine(replace(RUNTIME, home=tmp_path)) as broken,
        pytest.raises(RuntimeBrokenError, match=r"libmemgate_phantom.*memgate runtimes install"),
    ):
        _trace(broken, GPT2)


@pytest.mark.parametrize("gpu", ["p100-16", "v100-32"])
def test_a_gpu_without_kernels_is_refused_with_what_to_do(engine: PhantomEngine, gpu: str) -> None:
    """As PyTorch would refuse it: the capability, why, and a runtime that may do."""
    with pytest.raises(NoKernelsError) as raised:
        _trace(engine, RESNET, gpu)

    capability = ".".join(map(str, find_gpu(gpu).compute_capability))
    assert f"torch-2.14 has no kernels for GPUs of compute capability {capability}" in str(
        raised.value
    )
    assert "run it with another runtime (torch-2.6), or on another GPU" in raised.value.message
    traced = _trace(engine, RESNET, "t4")
    assert gpu not in estimate_run(traced, GpuTarget(gpu=find_gpu("t4"))).fits_on
    assert not find_gpu(gpu).has_kernels(traced.architectures)
