"""What a job does where nothing sees it: other programs' GPUs, later processes, unused loaders."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from memgate.errors import UnsupportedJobError
from memgate.gpus import find_gpu
from memgate_worker.hook.memgate_hook.watch import Watch
from memgate_worker.recorder import waiting
from memgate_worker.recorder.question import CommandQuestion
from memgate_worker.recorder.ranks import record_command
from memgate_worker.recorder.reading import CommandRun
from tests.integration.recording import RUNTIME, doubts, needs_runtime, record_fixture

pytestmark = needs_runtime

#: steps and evaluations for ever
BEGIN = """
import os, subprocess, sys, time, torch
from torch.utils.data import DataLoader, Dataset, TensorDataset
model = torch.nn.Conv2d(3, 8, 3).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1)
class Images(Dataset):
    def __init__(self, size, seconds=0.0): self.size, self.seconds, self.num_made = size, seconds, 0
    def __len__(self): return 64
    def __getitem__(self, index):
        time.sleep(self.seconds)
        self.num_made += 1
        return torch.rand(3, self.size, self.size), index
def go_on(loader):
    while True:
        for images, _ in loader:
            model(images.cuda()).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            for images, _ in loader: model(images.cuda())
        model.train()
train = DataLoader(Images(16), batch_size=8, shuffle=True)
"""

record = record_fixture(BEGIN)


@pytest.fixture
def sh(tmp_path: Path) -> Any:
    """Write a shell script in which ``train`` is a command, and record it."""

    def run(text: str) -> CommandRun:
        (tmp_path / "train.py").write_text(BEGIN + "go_on(train)")
        begin = f'python3() {{ {sys.executable} "$@"; }}\n'
        (tmp_path / "run.sh").write_text(f"{begin}train() {{ {RUNTIME.python} train.py; }}\n{text}")
        question = CommandQuestion(
            command=("bash", "run.sh"),
            directory=tmp_path,
            environment={"PATH": "/usr/bin:/bin"},
            gpu=find_gpu("a100-40"),
            runtime=RUNTIME.name,
        )
        return record_command(question)

    return run


LOAD = """python3 -c 'import ctypes; ctypes.CDLL("{name}")' 2> /dev/null || echo none\n"""


def test_a_program_that_goes_on_without_the_driver_is_named(sh: Any) -> None:
    """Where there is a GPU, it takes memory of it."""
    run = sh(LOAD.format(name="libcuda.so.1") + "train\n")

    assert doubts(run) == ["DRIVER_NOT_FOUND"]
    assert "ctypes.CDLL" in run.traced.doubts[0].message
    assert "libcuda.so.1" in run.traced.doubts[0].message


def test_to_look_whether_there_is_a_gpu_is_not_to_use_it(sh: Any) -> None:
    """A script that looks and then trains, and a monitor, have lost nothing by not finding it."""
    run = sh(
        "[ -e /dev/nvidia0 ] && echo one\nnvidia-smi -L\ncommand -v nvcc\n"
        f"ln -s {sys.executable} nvtop\n./nvtop{LOAD.format(name='libnvidia-ml.so.1')[7:]}"
        "train\n"
    )

    assert doubts(run) == []


def test_a_job_without_torch_is_told_so(sh: Any) -> None:
    """Not that it runs on the CPU: it would not, where there is a GPU."""
    with pytest.raises(UnsupportedJobError, match="through PyTorch, and no other"):
        sh(LOAD.format(name="libcuda.so.1"))


LATER = """
eval_code = "import time, torch; time.sleep(3); torch.zeros(1 << 28, device='cuda')"
subprocess.Popen([sys.executable, "-c", eval_code], start_new_session=True)
go_on(train)
"""


def test_a_process_that_uses_the_gpu_after_its_job_was_ended_is_waited_for(record: Any) -> None:
    """The job would still be there, with its own memory."""
    assert doubts(record(LATER)) == ["SEVERAL_PROCESSES"]


@pytest.mark.parametrize(
    ("started", "want"),
    [
        ("subprocess.Popen(['sleep', '4245'])", ["COMMANDS_NOT_SEEN"]),
        (
            "torch.multiprocessing.Process(target=time.sleep, args=(4246,)).start()",
            ["COMMANDS_NOT_SEEN"],
        ),
        ("workers = torch.multiprocessing.Pool(2); shared = torch.multiprocessing.Manager()", []),
        ("train = DataLoader(Images(16), 8, num_workers=2, persistent_workers=True)", []),
    ],
    ids=["program", "process", "pool", "loader"],
)
def test_what_goes_on_without_its_job_is_doubted(
    record: Any, monkeypatch: pytest.MonkeyPatch, started: str, want: list[str]
) -> None:
    """It may use the GPU later; those that only do what the job tells them cannot."""
    monkeypatch.setattr(waiting, "_LATER_SECONDS", 1.0)

    assert doubts(record(f"{started}\ngo_on(train)")) == want


@pytest.mark.parametrize(
    ("later", "want"),
    [
        ("DataLoader(Images(64), batch_size=8, shuffle=True)", "as large as 128 samples"),
        ("DataLoader(Images(8, seconds=60), batch_size=8, shuffle=True)", "is not known"),
        ("DataLoader(Images(64), batch_size=8)", "go on until there was one"),
        (
            "DataLoader(Images(16), 8, True, collate_fn=lambda s: torch.zeros(len(s), 9999))",
            "as large as",
        ),
        ("DataLoader(Images(16), batch_size=8, shuffle=True)", None),
        ("DataLoader(Images(8), batch_size=8)", None),
        ("DataLoader(TensorDataset(torch.zeros(9, 3, 4, 4), torch.zeros(9)), batch_size=8)", None),
    ],
    ids=["larger", "slow", "larger, in order", "put together", "as large", "smaller", "tensors"],
)
def test_an_unused_loader_with_larger_samples_is_doubted(
    record: Any, later: str, want: str | None
) -> None:
    """Batches have as many samples; how large these are was measured."""
    run = record(f"later = {later}\ngo_on(train)", watch=Watch(seconds=2.0))

    messages = " ".join(doubt.message for doubt in run.traced.doubts)
    assert want in messages if want else messages == ""


def test_measuring_a_loader_leaves_the_job_as_it_was(record: Any) -> None:
    """Neither its random numbers nor its data sets notice."""
    text = """
from memgate_hook.sample_sizes import measure_sample
import random
random.seed(1); torch.manual_seed(1)
before = random.getstate(), torch.get_rng_state()
loader = DataLoader(Images(16), batch_size=8, shuffle=True)
assert measure_sample(loader).elements == 3 * 16 * 16 + 1
assert loader.dataset.num_made == 0
assert random.getstate() == before[0] and torch.equal(torch.get_rng_state(), before[1])
go_on(train)
"""
    assert doubts(record(text)) == []


def test_shapes_in_a_class_of_the_jobs_own_are_seen(record: Any) -> None:
    """Batches of a library of graphs, say: no tensor is among the arguments themselves."""
    text = """
class Batch:
    __slots__ = ("images",)
    def __init__(self, count): self.images = torch.zeros(count, 3, 16, 16, device="cuda")
class Graph:
    def __init__(self, batch): self.store = {"batch": batch, "name": "x"}
class Net(torch.nn.Module):
    def __init__(self): super().__init__(); self.conv = model
    def forward(self, graph): return self.conv(graph.store["batch"].images)
net = Net()
for count in range(1, 13):
    net(Graph(Batch(count * 7 % 12 + 1))).sum().backward()
    optimizer.step()
raise SystemExit
"""
    run = record(text, num_steps=8)

    assert "INPUT_SHAPES_VARY" in doubts(run)
