"""Process groups under ``memgate run``: of one process, as most launchers make them."""

from __future__ import annotations

from typing import Any

from memgate.gpus import GpuTarget, find_gpu
from memgate_worker.engines.phantom.communication import ALONE
from memgate_worker.verdicts import estimate_run
from tests.integration.recording import (
    doubts,
    needs_runtime,
    record_fixture,
)

pytestmark = needs_runtime


record = record_fixture()


T4 = GpuTarget(gpu=find_gpu("t4"))

GROUP = """
import torch
import torch.distributed as dist
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=WORLD)
numbers = torch.tensor([3, 4]).cuda()
dist.all_reduce(numbers)
"""


def test_a_process_group_of_one_works_as_it_does_on_a_gpu(record: Any) -> None:
    """Most launchers make one; what is sent comes back, and gradients have their buckets."""
    run = record(
        GROUP.replace("WORLD", "1")
        + """
assert numbers.tolist() == [3, 4]
gathered = [torch.zeros_like(numbers)]
dist.all_gather(gathered, numbers)
received = torch.zeros_like(numbers)
dist.all_to_all_single(received, numbers)
objects = [None]
dist.all_gather_object(objects, "text")
assert (gathered[0].tolist(), received.tolist(), objects) == ([3, 4], [3, 4], ["text"])
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(256, 256).cuda())
optimizer = torch.optim.SGD(model.parameters(), lr=1)
for _ in range(5):
    model(torch.zeros(8, 256, device="cuda")).sum().backward()
    optimizer.step()
dist.destroy_process_group()
"""
    )

    assert (run.num_steps, doubts(run)) == (5, [])
    assert run.traced.communication.communicators == (ALONE,)
    assert "NCCL_MEMORY" in {reason.code for reason in estimate_run(run.traced, T4).reasons}
    bucket = 256 * 257 * 4
    sizes = [getattr(event, "size_bytes", 0) for event in run.traced.timeline.events]
    assert bucket in sizes


def test_a_process_group_of_several_needs_nobody_else(record: Any) -> None:
    """A store of the job's own has nobody else in it, and what all would send is added up."""
    run = record(
        GROUP.replace("WORLD", "2")
        + """
assert numbers.tolist() == [6, 8]
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1)
for _ in range(2):
    model(torch.zeros(8, 256, device="cuda")).sum().backward()
    optimizer.step()
"""
    )

    assert doubts(run) == ["RANKS_NOT_RUN"]
