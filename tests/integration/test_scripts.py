"""People's own training scripts, unchanged, on a GPU that is not there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.errors import (
    HostMemoryError,
    JobFailedError,
    MemgateError,
    NotModelledError,
    TimeLimitError,
    UnsupportedJobError,
)
from memgate.timeline import Category, EmptyCache, SetFraction
from memgate.units import MIB
from memgate_worker.engines.traced import TracedJob
from memgate_worker.limits import RunLimits
from memgate_worker.runtimes.runtime import read_runtimes
from tests.conftest import DATA
from tests.integration.recording import record_script

RUNTIME = read_runtimes()["torch-2.14"]
SCRIPTS = DATA / "scripts"

pytestmark = pytest.mark.skipif(
    not RUNTIME.is_installed, reason="runtime torch-2.14 is not built: make runtime"
)


@pytest.fixture
def trace(tmp_path: Path) -> Any:
    """Write a script and run it."""

    def run(text: str, *arguments: str, **options: Any) -> TracedJob:
        path = tmp_path / "train.py"
        path.write_text(text)
        options = {"num_steps": 4} | options
        return record_script(RUNTIME, path, arguments, **options).traced

    return run


@pytest.mark.parametrize(
    ("name", "num_parameters"),
    [
        ("plain_loop.py", 64 * 27 + 64 + 2 * 64 + 64 * 10 + 10),
        ("hugging_face_trainer.py", 655_872),
        ("lightning_trainer.py", 768 * 512 + 512 + 512 * 10 + 10),
    ],
)
def test_a_script_is_run_until_it_has_made_enough_steps(name: str, num_parameters: int) -> None:
    """Plain loop, Hugging Face, Lightning: the same marks, the same self-check, steps told."""
    heard: list[int] = []

    run = record_script(
        RUNTIME, SCRIPTS / name, num_steps=3, on_progress=lambda one: heard.append(one.num_steps)
    )

    assert heard[-1] <= run.num_steps == 3
    assert run.traced.num_parameters == num_parameters
    labels = {label.category for label in run.traced.timeline.labels}
    assert labels >= {
        Category.PARAMETERS,
        Category.GRADIENTS,
        Category.OPTIMIZER_STATE,
        Category.ACTIVATIONS,
        Category.BATCH,
    }


def test_arguments_reach_the_script_and_what_ends_by_itself_was_seen_whole() -> None:
    """48 images, 24 a batch, two epochs: four steps of the ten that were asked for."""
    arguments = ["--batch-size", "24", "--epochs", "2"]

    run = record_script(RUNTIME, SCRIPTS / "plain_loop.py", arguments, num_steps=10)

    assert (run.why, run.num_steps, run.traced.doubts) == ("end", 4, ())
    assert EmptyCache() in run.traced.timeline.events


TRAIN = """
import os, torch
{before}
model = torch.nn.Linear(1024, 1024).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1)
for _ in range(9):
    model(torch.zeros(8, 1024, device="cuda")).sum().backward()
    optimizer.step()
    {after}
"""


def test_a_script_sees_the_gpu_that_was_asked_for(trace: Any) -> None:
    """Its name and its memory, whatever it may take of the phantom."""
    before = """
properties = torch.cuda.get_device_properties(0)
assert properties.total_memory == torch.cuda.mem_get_info()[1] == 42298834944, properties
assert properties.name == "NVIDIA A100-SXM4-40GB" and properties.multi_processor_count == 108
assert torch.cuda.mem_get_info()[0] < 42298834944 + 1
torch.zeros(60 << 30, dtype=torch.uint8, device="cuda")
"""

    assert trace(TRAIN.format(before=before, after="")).num_parameters == 1024 * 1025


def test_a_script_may_set_the_allocator_itself(trace: Any) -> None:
    """Before its first use of CUDA, as the documentation asks; and a limit at any time."""
    before = """
os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
torch.cuda.set_per_process_memory_fraction(0.5)
"""
    traced = trace(TRAIN.format(before=before, after=""))

    assert parse_alloc_conf(traced.alloc_conf).expandable_segments
    assert traced.timeline.events[0] == SetFraction(0.5)


@pytest.mark.parametrize(
    ("environment", "want"),
    [
        ({"PYTORCH_ALLOC_CONF": "expandable_segments:True"}, "expandable_segments:True"),
        (
            {
                "PYTORCH_ALLOC_CONF": "expandable_segments:True",
                "PYTORCH_CUDA_ALLOC_CONF": "garbage_collection_threshold:0.5",
            },
            "garbage_collection_threshold:0.5",
        ),
    ],
    ids=["the general name", "both names"],
)
def test_the_allocator_variables_are_read_as_torch_reads_them(
    trace: Any, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], want: str
) -> None:
    """The settings in force are the allocator's own report: with both names, one is ignored."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert trace(TRAIN.format(before="", after="")).alloc_conf == want


def test_weights_are_never_filled(trace: Any) -> None:
    """A model of 40 GB on the CPU first, with a limit of 2 GB for the process."""
    layers = "Sequential(*[torch.nn.Linear(16_384, 16_384) for _ in range(36)])"
    text = TRAIN.replace("Linear(1024, 1024)", layers).replace("zeros(8, 1024", "zeros(8, 16_384")

    traced = trace(text.format(before="", after=""), limits=RunLimits(memory_bytes=2048 * MIB))

    assert traced.num_parameters == 36 * 16_384 * 16_385


@pytest.mark.parametrize(
    ("text", "want", "want_message"),
    [
        (
            "x = 1\n",
            UnsupportedJobError,
            "never used CUDA: as it was started, it runs on the CPU",
        ),
        (
            "import torch\ntorch.zeros(1).cuda()\n",
            UnsupportedJobError,
            "without a step of an optimizer of torch.optim:",
        ),
        (
            "\n\nraise ValueError('no data')\n",
            JobFailedError,
            "failed in train.py, line 3, in <module>: ValueError: no data",
        ),
        (
            "import does_not_exist\n",
            UnsupportedJobError,
            "needs the module 'does_not_exist', which runtime torch-2.14 lacks",
        ),
        ("x = (\n", JobFailedError, "SyntaxError: '(' was never closed"),
        (
            TRAIN.format(before="", after="torch.compile(model)(torch.zeros(8, 1024).cuda())"),
            UnsupportedJobError,
            "torch.compile, which needs the module 'triton', which runtime torch-2.14 lacks",
        ),
        ("import os; os.abort()\n", UnsupportedJobError, "died of signal SIGABRT"),
        ("import os; os._exit(0)\n", UnsupportedJobError, "never used CUDA"),
        ("import os; os._exit(7)\n", JobFailedError, "exit status 7"),
        (
            "import torch\nzeros = torch.zeros(4, 4, device='cuda')\n"
            "try: torch.sparse.mm(torch.eye(4).to_sparse_csr().cuda(), zeros)\n"
            "except RuntimeError: raise SystemExit('no sparse matrices here')\n",
            NotModelledError,
            "cusparse",
        ),
    ],
    ids=[
        "nothing",
        "no step",
        "raises",
        "module",
        "syntax",
        "compile",
        "aborts",
        "exits",
        "fails",
        "sparse",
    ],
)
def test_a_script_without_an_answer_says_whose_fault_it_is(
    trace: Any, text: str, want: type[MemgateError], want_message: str
) -> None:
    """Where, what and why, in a sentence; never the caller's, whose question was right."""
    with pytest.raises(want) as raised:
        trace(text)

    assert type(raised.value) is want
    assert want_message in raised.value.message


def test_a_script_that_gives_up_tells_its_last_words(trace: Any) -> None:
    """As argparse does."""
    text = "import argparse; argparse.ArgumentParser(prog='train').parse_args()\n"

    with pytest.raises(
        JobFailedError, match=r"(?s)exit status 2 .*train: error: unrecognized arguments: --x"
    ):
        trace(text, "--x")


@pytest.mark.parametrize(
    ("text", "limits", "want", "want_message"),
    [
        (
            "import time\ntime.sleep(60)\n",
            RunLimits(seconds=1),
            TimeLimitError,
            "took longer than 1 s before it used a GPU, which is memgate's limit",
        ),
        (
            "x = []\nwhile True: x.append(bytearray(b'x' * (1 << 24)))\n",
            RunLimits(memory_bytes=1536 * MIB),
            HostMemoryError,
            "took more memory of this machine than 1.50 GiB, which is memgate's limit",
        ),
    ],
    ids=["time", "memory"],
)
def test_a_limit_is_a_limit(
    trace: Any, text: str, limits: RunLimits, want: type[MemgateError], want_message: str
) -> None:
    """Time and memory of the machine."""
    with pytest.raises(want) as raised:
        trace(text, limits=limits)

    assert want_message in raised.value.message


def test_the_command_runs_a_script(run: Any) -> None:
    """Arguments after two dashes, the exit status and the answer of every estimate."""
    ran = run(
        *("estimate", SCRIPTS / "plain_loop.py", "--gpu", "rtx-3060", "--json"),
        *("--", "--width", "128"),
    )

    answer = json.loads(ran.out)
    assert (ran.status, answer["decision"]) == (0, "admit")
    assert sum(answer["breakdown"].values()) == answer["peak_bytes"]
