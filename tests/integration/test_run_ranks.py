"""Commands of several processes under ``memgate run``: one rank of them at a time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.integration.recording import RUNTIME, needs_runtime

pytestmark = needs_runtime

BIN = RUNTIME.python.parent

TRAIN = """
import os, sys, torch
import torch.distributed as dist
import torch.multiprocessing as mp
def train(rank, world_size, local_rank):
    torch.cuda.set_device(local_rank)
    model = torch.nn.Linear(1024, 1024).cuda()
    model = torch.nn.parallel.DistributedDataParallel(model, device_ids=[local_rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=1)
    for _ in range(5):
        model(torch.zeros(8, 1024, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
"""

LAUNCHED = """
dist.init_process_group("nccl")
rank, world_size = dist.get_rank(), dist.get_world_size()
assert (rank, world_size) in ((0, 8), (7, 8)), (rank, world_size)
assert int(os.environ["GROUP_RANK"]) == rank // 4 and os.environ["GROUP_WORLD_SIZE"] == "2"
assert torch.cuda.device_count() == 4
torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
sizes = torch.tensor([5, 3] if rank == 0 else [0, 0], device="cuda")
dist.broadcast(sizes, 0)
assert sizes.tolist() == [5, 3], sizes
described, part = [{"width": 9} if rank == 0 else None], [None]
dist.broadcast_object_list(described, 0)
assert described == [{"width": 9}], described
dist.scatter_object_list(part, [*range(8)] if rank == 0 else None, 0)
assert part == [rank], part
flags = torch.tensor([rank == 0, False], device="cuda")
dist.broadcast(flags, 0)
assert flags.tolist() == [True, False], flags
share = torch.tensor([0.5 if rank == 0 else 0.1], device="cuda")
dist.broadcast(share, 0)
assert share.item() == 0.5, share
own = torch.zeros(2, dtype=torch.long, device="cuda")
parts = [torch.tensor([one, 2 * one], device="cuda") for one in range(8)]
dist.scatter(own, parts if rank == 0 else None, 0)
assert own.tolist() == [rank, 2 * rank], own
got = torch.zeros(1, dtype=torch.long, device="cuda")
if rank == 0:
    dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.tensor([21], device="cuda"), 7)])
elif rank == 7:
    dist.batch_isend_irecv([dist.P2POp(dist.irecv, got, 0)])
    assert got.item() == 21, got
train(rank, world_size, int(os.environ["LOCAL_RANK"]))
"""

SPAWNED = """
def work(rank, world_size):
    dist.init_process_group("nccl", f"tcp://10.0.0.1:9", rank=rank, world_size=world_size)
    train(rank, world_size, rank)
if __name__ == "__main__":
    mp.spawn(work, (4,), nprocs=4)
"""


def _ask(run: Any, *command: object) -> dict[str, Any]:
    ran = run("run", "--gpu", "t4", "--until", "end", "--json", *command)
    assert ran.status in (0, 4), ran.err
    return dict(json.loads(ran.out))


@pytest.fixture
def script(tmp_path: Path) -> Any:
    """Write a script that trains."""

    def write(text: str) -> Path:
        path = tmp_path / "train.py"
        path.write_text(TRAIN + text)
        return path

    return write


def test_torchrun_plays_the_first_rank_and_the_last_of_another_node(run: Any, script: Any) -> None:
    """It waits for no other node, wherever that is, and the file of it has both."""
    path = script(LAUNCHED)
    there = ("--nnodes", "2", "--node-rank", "1", "--rdzv-endpoint", "10.0.0.1:9")
    file = path.with_name("job.memgate")

    said = _ask(run, "-o", file, "--", BIN / "torchrun", "--nproc-per-node", "4", *there, path)
    again = run("estimate", file, "--gpu", "t4", "--json")

    assert said["world_size"] == 8
    assert [one["rank"] for one in said["ranks"]] == [0, 7]
    assert json.loads(again.out)["ranks"] == said["ranks"]
    codes = {reason["code"] for reason in said["reasons"]}
    assert not {"SEVERAL_PROCESSES", "PROCESS_NOT_RECORDED", "COMMANDS_NOT_SEEN"} & codes
    assert not {"SIZES_FROM_OTHER_RANKS", "OBJECTS_FROM_OTHER_RANKS"} & codes


@pytest.mark.slow
def test_sizes_that_the_first_rank_sends_are_received(run: Any, script: Any) -> None:
    """A buffer as large as the first rank says counts for those that make it."""
    path = script("""
dist.init_process_group("nccl")
rank = dist.get_rank()
torch.cuda.set_device(rank)
size = torch.tensor([1 << 30 if rank == 0 else 0], device="cuda")
if rank == 0:
    for other in range(1, 4):
        dist.send(size, other)
else:
    dist.recv(size, 0)
    kept = torch.empty(size.item(), dtype=torch.uint8, device="cuda")
train(rank, 4, rank)
""")

    said = _ask(run, "--", BIN / "torchrun", "--nproc-per-node", "4", path)

    peaks = {one["rank"]: one["peak_bytes"] for one in said["ranks"]}
    assert {0, 3} <= peaks.keys()
    # NCCL makes a communicator for each pair, of 48 MiB: three on the first rank, one on others
    assert {peaks[rank] - peaks[0] for rank in peaks if rank} == {(1 << 30) - 2 * (48 << 20)}


@pytest.mark.slow
def test_processes_of_the_job_itself_are_its_ranks(run: Any, script: Any) -> None:
    """Child i is rank i, and all of them are joined."""
    said = _ask(run, "--", RUNTIME.python, script(SPAWNED))

    assert (said["world_size"], [one["rank"] for one in said["ranks"]]) == (4, [0, 3])


@pytest.mark.slow
def test_variables_make_a_process_a_rank(run: Any, script: Any, monkeypatch: Any) -> None:
    """As Slurm starts it, on two nodes."""
    for name, value in {"SLURM_NTASKS": "8", "SLURM_NNODES": "2", "SLURM_PROCID": "0"}.items():
        monkeypatch.setenv(name, value)
    path = script("""
rank, world_size = (int(os.environ[name]) for name in ("SLURM_PROCID", "SLURM_NTASKS"))
dist.init_process_group("nccl", "tcp://10.0.0.1:9", rank=rank, world_size=world_size)
train(rank, world_size, int(os.environ["SLURM_LOCALID"]))
""")

    said = _ask(run, "--", RUNTIME.python, path)

    assert (said["world_size"], [one["rank"] for one in said["ranks"]]) == (8, [0, 7])


def test_a_launcher_that_contradicts_the_caller_is_bad_usage(run: Any, script: Any) -> None:
    """Both are named."""
    command = (BIN / "torchrun", "--nproc-per-node", "2", script(LAUNCHED))

    ran = run("run", "--gpu", "t4", "--nproc", "8", "--", *command)

    assert ran.status == 2
    assert "--nproc 8, but torchrun starts 2 processes on a node" in ran.err


@pytest.mark.slow
def test_a_rank_that_fails_is_named(run: Any, script: Any) -> None:
    """With its frame and what it printed."""
    path = script("""
dist.init_process_group("nccl")
if dist.get_rank():
    raise ValueError("no")
train(0, 2, 0)
""")

    ran = run("run", "--gpu", "t4", "--", BIN / "torchrun", "--nproc-per-node", "2", path)

    assert ran.status == 1
    assert "rank 1 of 2: the job failed in train.py" in ran.err
    assert "ValueError: no" in ran.err
