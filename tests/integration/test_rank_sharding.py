"""DTensor's lists of tensors, divided once for tensors that are alike: the same result, sooner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.recording import RUNTIME, needs_runtime, record_script

pytestmark = needs_runtime

#: every call is made twice: as it is, and as torch would have done it
SCRIPT = """
import torch, torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, ones
from torch.distributed.tensor._sharding_prop import ShardingPropagator
torch.cuda.set_device(0)
dist.init_process_group("nccl")
ours = ShardingPropagator.propagate_op_sharding_non_cached
torchs, lists, worked_out = ours.__wrapped__, [], []
def compare(self, schema):
    mine, theirs = ours(self, schema), torchs(self, schema)
    names = ("output_spec", "redistribute_schema", "needs_redistribute")
    assert [getattr(mine, name) for name in names] == [getattr(theirs, name) for name in names]
    if schema.op.name().startswith("aten::_foreach_"):
        lists.append(schema.op.name())
    return mine
ShardingPropagator.propagate_op_sharding_non_cached = compare
model = nn.Sequential(*(nn.Linear(61, 61) for _ in range(6)), nn.Linear(61, 7)).cuda()
for layer in model:
    fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)
for step in range(4):
    model(torch.zeros(8, 61, device="cuda")).sum().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
mesh = init_device_mesh("cuda", (8,))
def spread(*placements):
    return [ones((64, 64), device_mesh=mesh, placements=[one]) for one in placements]
torch._foreach_add(spread(Shard(0), Replicate(), Shard(1)), [1, 2.5, 3])
torch._foreach_mul(spread(Shard(0), Shard(0)), spread(Shard(0), Shard(1)))
assert {"aten::_foreach_addcdiv_", "aten::_foreach_norm.Scalar"} & set(lists), lists
assert "aten::_foreach_mul.List" in lists and "aten::_foreach_add.ScalarList" in lists, lists
"""


@pytest.fixture
def record(tmp_path: Path, monkeypatch: Any) -> Any:
    """Record a script as the second of eight ranks."""

    def run(text: str) -> Any:
        said = {"RANK": "1", "WORLD_SIZE": "8", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "8"}
        for name, value in said.items():
            monkeypatch.setenv(name, value)
        path = tmp_path / "train.py"
        path.write_text(text)
        return record_script(RUNTIME, path, rank=1)

    return run


def test_lists_are_divided_as_torch_divides_them(record: Any) -> None:
    """Sharded and replicated tensors, numbers of two types, and what must be divided anew first."""
    run = record(SCRIPT)

    assert run.num_steps == 4
    assert [one.message for one in run.traced.doubts if one.code == "FAILED_LATER"] == []


def test_a_step_does_not_work_out_again_how_parameters_are_divided(record: Any) -> None:
    """What optimizers do per parameter and step would take longer than everything else."""
    count = """
calls = []
def counting(self, schema):
    calls.append(schema)
    return torchs(self, schema)
cell = next(one for one in ours.__closure__ if one.cell_contents is torchs)
cell.cell_contents = counting
"""
    text = SCRIPT.replace("ShardingPropagator.propagate_op_sharding_non_cached = compare\n", count)
    text = text.split("mesh = ")[0].replace(
        "    optimizer.zero_grad()\n",
        "    optimizer.zero_grad()\n    if step == 1: early = len(calls)\n",
    )
    text += "assert early and len(calls) == early, (early, calls[early:])\n"
    text += "width = max(len(one.args_schema[0]) for one in calls if 'foreach' in one.op.name())\n"
    text += "assert width == 4, width\n"

    run = record(text)

    assert [one.message for one in run.traced.doubts if one.code == "FAILED_LATER"] == []
