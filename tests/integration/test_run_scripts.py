"""What scripts in the wild do, and what went wrong with it once (docs/scripts.md)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from memgate_worker.hook.memgate_hook.watch import Watch
from tests.integration.recording import (
    RUNTIME,
    doubts,
    needs_runtime,
    record_fixture,
    record_script,
)

pytestmark = needs_runtime

TRAIN = """
import os, sys, torch
from torch import nn
model = nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1)
def step(batch=None):
    batch = torch.zeros(8, 256) if batch is None else batch
    model.train()
    model(batch.cuda()).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


record = record_fixture(TRAIN)


def test_calls_without_gradients_that_steps_do_not_make_evaluate(record: Any) -> None:
    """Many jobs never leave the training mode."""
    text = """
for _ in range(6): step()
with torch.no_grad():
    for _ in range(4): model(torch.zeros(64, 256).cuda())
while True: step()
"""
    assert record(text, watch=Watch(seconds=60)).why == "evaluation"


@pytest.mark.parametrize(
    ("size", "want"), [(8, []), (1, ["EVALUATION_NOT_REACHED"]), (4000, ["EVALUATION_NOT_REACHED"])]
)
def test_an_evaluation_before_the_first_step_tells_what_later_ones_take(
    record: Any, size: int, want: list[str]
) -> None:
    """Unless it only tried the model out, or takes more than training does."""
    text = f"""
with torch.no_grad():
    model.eval()
    for _ in range(3):
        model(torch.zeros({size}, 256).cuda())
while True: step()
"""
    assert doubts(record(text, watch=Watch(seconds=0.5))) == want


def test_steps_of_several_optimizers_are_one_step(record: Any) -> None:
    """The generator of a GAN, and then its discriminator."""
    text = """
makes = nn.Linear(32, 256).cuda()
other = torch.optim.SGD(makes.parameters(), lr=1)
while True:
    made = makes(torch.zeros(8, 32).cuda())
    model(made).sum().backward()
    other.step()
    step()
"""
    assert doubts(record(text, watch=Watch(seconds=0.5))) == ["EVALUATION_NOT_REACHED"]


def test_a_model_can_be_traced(record: Any) -> None:
    """Its graph is compared with that of a second run, and has nothing of ours in it."""
    run = record("torch.jit.trace(model, torch.zeros(2, 256).cuda())\nfor _ in range(5): step()\n")

    assert {batch.shape for batch in run.batches} == {(8, 256)}


def test_a_job_ends_with_the_memgate_that_runs_it() -> None:
    """Schedulers and `timeout` send a signal; what is left behind would go on for days."""
    job = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
    command = [sys.executable, "-c", job]
    memgate = subprocess.Popen(
        [Path(sys.executable).parent / "memgate", "run", "--show-output", "--", *command],
        stderr=subprocess.PIPE,
        text=True,
    )
    assert memgate.stderr is not None
    pid = int(next(line for line in memgate.stderr if line.strip().isdigit()))

    memgate.terminate()

    assert memgate.wait(30) == 143
    memgate.stderr.close()
    assert not psutil.pid_exists(pid)


def test_a_library_that_only_looks_for_torch_changes_nothing(tmp_path: Path) -> None:
    """Torch is recorded when it is imported, later."""
    path = tmp_path / "train.py"
    look = "from importlib.util import find_spec\nassert find_spec('torch').origin\n"
    path.write_text(look + TRAIN + "for _ in range(5): step()\n")

    run = record_script(RUNTIME, path)

    assert (run.num_steps, run.why) == (5, "end")


def test_the_process_that_failed_is_named_and_not_what_started_it(run: Any, tmp_path: Path) -> None:
    """Launchers fail as well, at greater length."""
    path = tmp_path / "train.py"
    path.write_text("print('half way')\nraise KeyError('text')\n")
    start = [RUNTIME.python, "-m", "accelerate.commands.launch", "--num_processes", "1"]

    ran = run("run", "--gpu", "t4", "--", *start, path)

    assert ran.status == 1
    assert "the job failed in train.py, line 2, in <module>: KeyError: 'text'" in ran.err
    assert "  half way" in ran.err
    assert "CalledProcessError" not in ran.err


ALONE = """
import torch.distributed as dist
dist.init_process_group("nccl")
dist.barrier()
gathered = [None]
dist.all_gather_object(gathered, {"a": 5})
assert gathered == [{"a": 5}], gathered
model = nn.parallel.DistributedDataParallel(model, device_ids=[0])
for _ in range(5): step()
dist.destroy_process_group()
"""


def test_a_single_process_of_a_distributed_job_runs(run: Any, tmp_path: Path) -> None:
    """It exchanges everything with itself; several are in ``test_run_ranks``."""
    path = tmp_path / "train.py"
    path.write_text(TRAIN + ALONE)
    start = [RUNTIME.python.parent / "torchrun", "--standalone", "--nproc-per-node"]

    ran = run("run", "--gpu", "t4", "--json", "--", *start, "1", path)

    assert (ran.status, '"decision":"admit"' in ran.out) == (0, True)


LOADER = """
class Scaled(torch.utils.data.Dataset):
    scale = nn.Threshold(0, 0)  # a transform of images is a module, too
    def __len__(self):
        return 80
    def __getitem__(self, index):
        self.scale(torch.zeros(index + 1))
        return self.scale(torch.zeros(256))
loader = torch.utils.data.DataLoader(Scaled(), batch_size=8, num_workers={workers})
for batch in loader:
    step(batch)
model.eval()
with torch.no_grad():
    for batch in loader:
        model(batch.cuda())
"""


@pytest.mark.parametrize("workers", [0, 1])
def test_modules_that_prepare_data_are_no_part_of_training(record: Any, workers: int) -> None:
    """They are called by the thousand between steps, with any shapes, in forked workers, too."""
    run = record(LOADER.format(workers=workers))

    assert (run.num_steps, doubts(run)) == (10, [])
    assert {batch.shape for batch in run.batches} == {(8, 256)}
