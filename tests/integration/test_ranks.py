"""One process as one rank of many: PyTorch's own distributed code, with nobody else there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memgate.timeline import Category
from tests.integration.rank_scripts import bytes_of, rank_fixture
from tests.integration.recording import doubts, needs_runtime

pytestmark = needs_runtime

record = rank_fixture()


@pytest.mark.parametrize(
    "options",
    [
        "",
        pytest.param(", find_unused_parameters=True", marks=pytest.mark.slow),
        pytest.param(", gradient_as_bucket_view=True", marks=pytest.mark.slow),
        pytest.param(", static_graph=True", marks=pytest.mark.slow),
    ],
    ids=["plain", "unused parameters", "bucket views", "static graph"],
)
def test_replicas_train_alone(record: Any, options: str) -> None:
    """DDP has whole parameters, gradients and optimizer state, and buckets besides."""
    run = record(
        f"train(nn.parallel.DistributedDataParallel(make().cuda(), device_ids=[local]{options}))"
    )

    num_bytes = 3 * (256 * 2 + 256 * 1024 * 2 + 1024 + 256) * 4
    assert (run.num_steps, doubts(run)) == (3, [])
    assert num_bytes <= bytes_of(run, Category.PARAMETERS) < num_bytes * 1.01


SHARDED_BY_FSDP1 = """
from torch.distributed.fsdp import *
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
wrap = ModuleWrapPolicy({Block})
"""


@pytest.mark.parametrize(
    "options",
    [
        "sharding_strategy=ShardingStrategy.FULL_SHARD",
        *(
            pytest.param(options, marks=pytest.mark.slow)
            for options in (
                "sharding_strategy=ShardingStrategy.SHARD_GRAD_OP",
                "mixed_precision=MixedPrecision(torch.bfloat16, torch.float32)",
                "use_orig_params=True, sync_module_states=True",
            )
        ),
        "sharding_strategy=ShardingStrategy.HYBRID_SHARD, device_mesh=mesh",
    ],
    ids=["full", "gradients", "mixed precision", "original parameters", "hybrid"],
)
def test_fully_sharded_modules_train_alone(record: Any, options: str) -> None:
    """FSDP1 keeps this rank's share of parameters, gradients and optimizer state."""
    run = record(
        SHARDED_BY_FSDP1
        + "mesh = dist.device_mesh.init_device_mesh('cuda', (2, size // 2))\n"
        + f"model = FullyShardedDataParallel(make().cuda(), auto_wrap_policy=wrap, {options})\n"
        + "train(model)"
    )

    share = 4 if "HYBRID" in options else 8
    num_bytes = 3 * (256 * 2 + 256 * 1024 * 2 + 1024 + 256) * 4 // share
    assert (run.num_steps, doubts(run)) == (3, [])
    assert bytes_of(run, Category.PARAMETERS) == pytest.approx(num_bytes, rel=0.02)
    assert bytes_of(run, Category.OPTIMIZER_STATE) == pytest.approx(2 * num_bytes, rel=0.02)


@pytest.mark.parametrize(
    ("options", "share"),
    [
        ("mesh=flat", 8),
        *(
            pytest.param(f"mesh=flat, {options}", 8, marks=pytest.mark.slow)
            for options in (
                "reshard_after_forward=False",
                "reshard_after_forward=2",
                "mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32)",
            )
        ),
        ("mesh=grid", 4),
    ],
    ids=["plain", "kept", "resharded to two", "mixed precision", "hybrid"],
)
def test_modules_sharded_by_dtensors_train_alone(record: Any, options: str, share: int) -> None:
    """FSDP2 keeps this rank's share of parameters and of the optimizer's state."""
    run = record(
        f"""
from torch.distributed.fsdp import fully_shard, MixedPrecisionPolicy
flat = dist.device_mesh.init_device_mesh("cuda", (size,))
grid = dist.device_mesh.init_device_mesh(
    "cuda", (2, size // 2), mesh_dim_names=("replicate", "shard")
)
model = make().cuda()
for block in model:
    fully_shard(block, {options})
fully_shard(model, {options})
train(model)
"""
    )

    num_bytes = 3 * (256 * 2 + 256 * 1024 * 2 + 1024 + 256) * 4 // share
    assert (run.num_steps, doubts(run)) == (3, [])
    assert bytes_of(run, Category.PARAMETERS) == pytest.approx(num_bytes, rel=0.02)
    assert bytes_of(run, Category.OPTIMIZER_STATE) == pytest.approx(2 * num_bytes, rel=0.02)


@pytest.mark.parametrize("strategy", ["fsdp1", "fsdp2"])
def test_parameters_may_live_on_the_host(record: Any, strategy: str) -> None:
    """Offloading keeps shares of parameters, gradients and optimizer state off the GPU."""
    offloaded = {
        "fsdp1": SHARDED_BY_FSDP1
        + "model = FullyShardedDataParallel(make(), auto_wrap_policy=wrap, device_id=local,"
        " cpu_offload=CPUOffload(True))",
        "fsdp2": """
from torch.distributed.fsdp import fully_shard, CPUOffloadPolicy
model = make()
for part in (*model, model):
    fully_shard(part, offload_policy=CPUOffloadPolicy())
""",
    }
    run = record(f"{offloaded[strategy]}\ntrain(model)")

    assert run.num_steps == 3
    assert bytes_of(run, Category.OPTIMIZER_STATE) == 0


def test_tensors_are_parallel_and_so_is_the_context(record: Any) -> None:
    """Each rank has its share of the weights, and works on its part of the sequence."""
    run = record(
        """
import torch.nn.functional as F
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.experimental import context_parallel
from torch.distributed.tensor.parallel import (
    ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module
)
from torch.nn.attention import SDPBackend, sdpa_kernel
mesh = dist.device_mesh.init_device_mesh("cuda", (size,))
model = make().cuda()
for block in model:
    parallelize_module(block, mesh, {
        "norm": SequenceParallel(),
        "up": ColwiseParallel(input_layouts=Shard(1)),
        "down": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
    })
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    part = DTensor.from_local(torch.randn(2, 16, 256, device="cuda"), mesh, [Shard(1)])
    model(part).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
query = torch.randn(2, 8, 128 * size, 64, device="cuda", dtype=torch.bfloat16)
with context_parallel(mesh, buffers=[query], buffer_seq_dims=[2], no_restore_buffers={query}):
    query.requires_grad_()
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        F.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()
assert query.shape[2] == 128, query.shape
dist.destroy_process_group()
"""
    )

    weights, rest = 256 * 1024 * 2 + 1024, 256 * 2 + 256
    num_bytes = 3 * (weights // 8 + rest) * 4
    assert run.num_steps == 3
    assert bytes_of(run, Category.OPTIMIZER_STATE) == pytest.approx(2 * num_bytes, rel=0.02)
    assert "SIZES_FROM_OTHER_RANKS" not in doubts(run)


PIPELINE = """
from torch.distributed.pipelining import (
    PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B
)
def shaped():
    return torch.randn(2, 256, device="cuda", requires_grad=True)
def differ(output, target):
    return (output - target).pow(2).mean()
def run(schedule, modules, stages):
    whole = schedule(stages if len(stages) > 1 else stages[0], n_microbatches=8, loss_fn=differ)
    optimizer = torch.optim.AdamW(modules.parameters())
    for _ in range(3):
        inputs = [torch.randn(16, 256, device="cuda")] if rank == 0 else []
        last = {"target": torch.randn(16, 256, device="cuda")} if rank == size - 1 else {}
        whole.step(*inputs, **last)
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("rank", [0, 1, 3], ids=["first", "middle", "last"])
def test_a_stage_of_a_pipeline_runs_without_the_others(record: Any, rank: int) -> None:
    """Activations come from nowhere and gradients go there, in the order of the schedule."""
    run = record(
        PIPELINE
        + """
for schedule, count in ((ScheduleGPipe, 1), (Schedule1F1B, 1), (ScheduleInterleaved1F1B, 2)):
    modules = nn.ModuleList(make() for _ in range(count)).cuda()
    run(schedule, modules, [
        PipelineStage(
            module, rank + number * size, count * size, torch.device("cuda", local),
            input_args=shaped(), output_args=shaped(),
        )
        for number, module in enumerate(modules)
    ])
""",
        rank=rank,
        world_size=4,
    )

    assert "SIZES_FROM_OTHER_RANKS" not in doubts(run)
    assert run.num_steps == 3
    assert "CALLS_REFUSED" not in doubts(run)


def test_a_first_stage_finds_the_shapes_of_its_later_ones(record: Any) -> None:
    """What another rank would say of shapes is what this one says itself."""
    run = record(
        PIPELINE
        + """
modules = nn.ModuleList(make() for _ in range(2)).cuda()
run(ScheduleInterleaved1F1B, modules, [
    PipelineStage(module, number * size, 2 * size, torch.device("cuda", local))
    for number, module in enumerate(modules)
])
""",
        rank=0,
        world_size=4,
    )

    assert run.num_steps == 3


@pytest.mark.parametrize("rank", [0, 3])
def test_optimizers_and_norms_over_ranks_work(record: Any, rank: int, tmp_path: Path) -> None:
    """ZeRO's optimizer, SyncBatchNorm, checkpoints of all ranks, groups of the CPU."""
    record(
        f"""
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
def sharded(parameters):
    return ZeroRedundancyOptimizer(parameters, torch.optim.AdamW, lr=1e-3)
model = nn.parallel.DistributedDataParallel(make().cuda(), device_ids=[local])
optimizer = sharded(model.parameters())
for _ in range(2):
    model(torch.randn(8, 256, device="cuda")).sum().backward()
    optimizer.step()
optimizer.consolidate_state_dict(0)
norm = nn.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(256)).cuda()
train(nn.parallel.DistributedDataParallel(norm, device_ids=[local]), steps=2)
model = make().cuda()
for part in (*model, model):
    fully_shard(part)
train(model, steps=2)
whole = get_model_state_dict(
    model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
)
assert rank or whole["0.up.weight"].shape == (1024, 256), whole.keys()
dcp.save({{"model": model.state_dict()}}, checkpoint_id="{tmp_path}/saved")
group = dist.new_group(backend="gloo")
dist.monitored_barrier(group)
number = torch.tensor([2.0])
dist.all_reduce(number, group=group)
assert number.item() == 2 * size
objects = [None] * size
dist.all_gather_object(objects, "text", group=group)
assert objects == ["text"] * size
gathered = [None] * size if rank == 0 else None
dist.gather_object(rank, gathered, dst=0)
assert gathered in (None, [rank] * size)
half = dist.new_group([0, 1, 2, 3])
parts = [torch.zeros(1, device="cuda") for _ in range(4)]
dist.all_gather(parts, torch.ones(1, device="cuda"), group=half)
assert torch.cat(parts).tolist() == [1] * 4
dist.destroy_process_group()
""",
        rank=rank,
    )


@pytest.mark.parametrize(
    ("world_size", "rank"),
    [(2, 1), pytest.param(64, 63, marks=pytest.mark.slow), (512, 511)],
)
def test_shares_are_exact_whatever_the_number_of_ranks(
    record: Any, world_size: int, rank: int
) -> None:
    """Rows are shared out evenly, and the last rank has what is left, down to nothing."""
    run = record(
        """
from torch.distributed.fsdp import fully_shard
model = nn.Linear(64, 1000, bias=False).cuda()
fully_shard(model)
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.randn(8, 64, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
""",
        rank=rank,
        world_size=world_size,
    )

    each = -(-1000 // world_size)
    rows = max(0, min(1000, (rank + 1) * each) - rank * each)
    wanted = 2 * rows * 64 * 4
    assert run.num_steps == 3
    assert wanted <= bytes_of(run, Category.OPTIMIZER_STATE) <= wanted + 2 * 512


def test_memory_on_another_gpu_is_told(record: Any) -> None:
    """A rank that forgets to set its device puts something on the first one."""
    run = record(
        """
stray = torch.zeros(1 << 20, device="cuda:0")
train(make().cuda())
assert torch.cuda.device_count() == 8
assert stray.device.index == 0 and torch.zeros(1, device="cuda:5").device.index == 5
"""
    )

    assert "OTHER_DEVICE_USED" in doubts(run)


@pytest.mark.slow
@pytest.mark.parametrize("rank", [0, 7])
def test_the_first_rank_collects_weights_and_states_of_all(record: Any, rank: int) -> None:
    """FSDP's whole checkpoint, and its weights put together, though most are on other ranks."""
    run = record(
        """
from torch.distributed.fsdp import FullStateDictConfig, FullyShardedDataParallel, StateDictType
from torch.distributed.fsdp import FullOptimStateDictConfig
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
model = FullyShardedDataParallel(
    make().cuda(), auto_wrap_policy=ModuleWrapPolicy({Block}), use_orig_params=True
)
optimizer = torch.optim.AdamW(model.parameters())
train(model, make_optimizer=lambda _: optimizer)
with FullyShardedDataParallel.summon_full_params(model, rank0_only=True, writeback=False):
    pass
whole = FullStateDictConfig(offload_to_cpu=True, rank0_only=True)
states = FullOptimStateDictConfig(offload_to_cpu=True, rank0_only=True)
with FullyShardedDataParallel.state_dict_type(
    model, StateDictType.FULL_STATE_DICT, whole, states
):
    weights = model.state_dict()
    state = FullyShardedDataParallel.optim_state_dict(model, optimizer)
assert len(weights) == (18 if rank == 0 else 0), len(weights)
if rank == 0:
    assert len(state["state"]) == 18 and all("exp_avg" in one for one in state["state"].values())
""",
        rank=rank,
    )

    assert [one.message for one in run.traced.doubts if one.code == "FAILED_LATER"] == []
