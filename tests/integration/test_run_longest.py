"""``memgate run --longest``: the job meets the longest batch, and the answer is for that."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.recording import (
    doubts,
    needs_runtime,
    record_fixture,
)

pytestmark = needs_runtime


record = record_fixture()


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


TWO_LENGTHS = """
other = torch.nn.Embedding(100, 256).cuda()
def ones(size): return torch.ones(size, dtype=torch.long)
data = [(ones(40 + 7 * (i % 11)), ones(90 - 5 * (i % 13))) for i in range(400)]
def collate_pairs(samples):
    return [torch.nn.utils.rnn.pad_sequence(side, batch_first=True) for side in zip(*samples)]
for left, right in DataLoader(data, batch_size=4, collate_fn=collate_pairs):
    (model(left.cuda()).sum() + other(right.cuda()).sum()).backward()
    optimizer.step()
"""


def test_the_longest_samples_of_two_lengths_are_not_the_longest_of_each(record: Any) -> None:
    """Both vary on their own, so what the longest of each take together was not seen."""
    run = record(LENGTHS + TWO_LENGTHS, longest="data", num_steps=14)

    assert doubts(run) == ["EVALUATION_NOT_REACHED", "INPUT_SHAPES_VARY"]
    assert "Several of their lengths vary on their own" in run.traced.doubts[1].message


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
