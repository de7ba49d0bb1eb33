"""``memgate run --longest``: the job meets the longest batch, and the answer is for that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memgate_worker.runtimes.runtime import read_runtimes
from tests.integration.recording import record_script

RUNTIME = read_runtimes()["torch-2.14"]

pytestmark = pytest.mark.skipif(
    not RUNTIME.is_installed, reason="runtime torch-2.14 is not built: make runtime"
)


@pytest.fixture
def record(tmp_path: Path) -> Any:
    """Write a script and record it."""

    def run(text: str, **options: Any) -> Any:
        path = tmp_path / "train.py"
        path.write_text(text)
        return record_script(RUNTIME, path, **options)

    return run


def doubts(run: Any) -> list[str]:
    """Return the codes of a recording's doubts."""
    return [doubt.code for doubt in run.traced.doubts]


LENGTHS = """
import torch
from torch.utils.data import DataLoader
model = torch.nn.Embedding(100, 256).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1)
data = [torch.ones(20 + 7 * i % 50, dtype=torch.long) for i in range(400)]
def collate(samples):
    padded = torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)
    return {"ids": padded, "lengths": torch.tensor([len(one) for one in samples])}
def batches(num_workers=0):
    return DataLoader(data, batch_size=4, collate_fn=collate, num_workers=num_workers)
def train(batch):
    model(batch["ids"].to("cuda")).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    ("loop", "num_steps"),
    [
        ("for batch in batches(): assert batch['lengths'].max() == batch['ids'].size(1)", 100),
        ("for batch in batches(num_workers=2): pass", 100),
        ("for i in range(0, 80, 4): batch = collate(data[i : i + 4])", 20),
    ],
    ids=["a loader", "workers", "by hand"],
)
def test_a_job_meets_its_longest_batch(record: Any, loop: str, num_steps: int) -> None:
    """Two of them, after the ordinary ones; that lengths vary is then no doubt any more."""
    run = record(LENGTHS + loop + "; train(batch)", longest=3000, num_steps=12)

    assert run.num_steps == 12 <= num_steps
    assert doubts(run) == ["EVALUATION_NOT_REACHED"]
    assert [note.code for note in run.traced.notes] == ["LONGEST_BATCH", "LATER_NOT_SEEN"]
    seen = {batch.shape: batch.num_batches for batch in run.batches}
    assert seen[4, 3000] == 2


def test_a_job_meets_the_longest_samples_of_its_data(record: Any) -> None:
    """One of four hundred is far longer than the others, and would come at the end."""
    longer = "data[399] = torch.ones(3000, dtype=torch.long)\n"
    loop = "for batch in batches(num_workers=2): train(batch)"
    run = record(LENGTHS + longer + loop, longest="data", num_steps=14)

    assert doubts(run) == ["EVALUATION_NOT_REACHED"]
    assert {batch.shape: batch.num_batches for batch in run.batches}[4, 3000] == 2


def test_what_cannot_be_made_longer_is_told(record: Any) -> None:
    """The answer is then for the batches that there were."""
    packed = "torch.nn.utils.rnn.pack_sequence(one, enforce_sorted=False)"
    run = record(
        LENGTHS
        + f"""
for one in DataLoader(data, 4, collate_fn=lambda one: {packed}): train({{"ids": one.data}})
""",
        longest=3000,
        num_steps=12,
    )

    assert doubts(run)[1:] == ["LONGEST_NOT_RUN", "INPUT_SHAPES_VARY"]
    assert "a batch has a PackedSequence in it" in run.traced.doubts[1].message
