"""Scripts that are one rank of several, and what is found out about them; what tests share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memgate.timeline import Category
from tests.integration.recording import RUNTIME, record_script

BEGIN = """
import os, torch, torch.distributed as dist
from torch import nn
local = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(local)
dist.init_process_group("nccl")
rank, size = dist.get_rank(), dist.get_world_size()
class Block(nn.Module):
    def __init__(self, width=256):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 1024), nn.Linear(1024, width)
    def forward(self, x):
        return x + self.down(torch.relu(self.up(self.norm(x))))
def make():
    return nn.Sequential(*(Block() for _ in range(3)))
def train(model, steps=3, make_optimizer=torch.optim.AdamW):
    optimizer = make_optimizer(model.parameters())
    for _ in range(steps):
        model(torch.randn(8, 256, device="cuda")).float().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def rank_fixture() -> Any:
    """Make a fixture that records a script as one rank of several."""

    @pytest.fixture
    def record(tmp_path: Path, monkeypatch: Any) -> Any:
        """Record a script as one rank of several on a machine with eight GPUs."""

        def run(text: str, *, rank: int = 3, world_size: int = 8, begin: str = BEGIN) -> Any:
            local = rank % 8
            variables = {
                "RANK": rank,
                "WORLD_SIZE": world_size,
                "LOCAL_RANK": local,
                "LOCAL_WORLD_SIZE": min(world_size, 8),
                "GROUP_RANK": rank // 8,
                "MASTER_ADDR": "192.0.2.1",
                "MASTER_PORT": 29500,
                "MEMGATE_PHANTOM_DEVICES": 8,
            }
            for name, value in variables.items():
                monkeypatch.setenv(name, str(value))
            path = tmp_path / "train.py"
            path.write_text(begin + text)
            return record_script(RUNTIME, path, rank=rank)

        return run

    return record


def bytes_of(run: Any, category: Category) -> int:
    """Return the bytes of all blocks that a category has."""
    timeline = getattr(run, "traced", run).timeline
    sizes = {
        event.block_id: event.size_bytes
        for event in timeline.events
        if hasattr(event, "size_bytes")
    }
    return sum(size for block, size in sizes.items() if timeline.labels[block].category == category)
