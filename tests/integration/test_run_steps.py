"""What counts as a step and as an evaluation under ``memgate run``, and what ends with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

from memgate.timeline import Alloc
from memgate_worker.hook.memgate_hook.watch import Watch
from tests.integration.recording import (
    doubts,
    needs_runtime,
    record_fixture,
)

pytestmark = needs_runtime

BEGIN = """
import torch
from torch import nn
def linear(size=256): return nn.Linear(size, size).cuda()
def batch(size=8): return torch.zeros(size, 256, device="cuda")
model, other = linear(), linear()
optimizer = torch.optim.Adam(model.parameters())
def step(loss):
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""

TEACHER = """
other.eval()
for i in range(60):
    with torch.no_grad():
        target = other(batch())
    step((model(batch()) - target).sum())
model.eval()
with torch.no_grad():
    for _ in range(3): model(batch(20_000))
model.train()
step(model(batch()).sum())
raise SystemExit("stopped by nobody")
"""

ACCUMULATION = """
for i in range(64):
    model(batch()).sum().backward()
    if i % 16 == 15:
        optimizer.step()
        optimizer.zero_grad()
    if i % 4 == 3:
        model.eval()
        with torch.no_grad(): model(batch())
        model.train()
"""

CRITIC = """
seldom = torch.optim.Adam(other.parameters())
for i in range(64):
    step(model(batch()).sum())
    if i % 4 == 1:
        model.eval()
        with torch.no_grad(): model(batch())
        model.train()
    if i == 40:
        other(batch()).sum().backward()
        seldom.step()
"""

EVALUATION = """
def evaluate(*sizes):
    model.eval()
    with torch.no_grad():
        for size in sizes: model(batch(size))
    model.train()
def train(steps):
    for _ in range(steps): step(model(batch()).sum())
"""

#: the longest comes after many shorter ones
LENGTHS = """
def batch(length): return torch.zeros(8, length, 256, device="cuda")
def train(steps):
    for _ in range(steps): step(model(batch(4)).sum())
train(6)
evaluate(300, *range(100, 150), 4000)
train(6)
"""

DAEMON = """
import os, time
for _ in range(6): step(model(batch()).sum())
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execvp("sleep", ["sleep", "4242.5"])
    os._exit(0)
os.wait()
"""


record = record_fixture(BEGIN)


def test_a_teacher_does_not_evaluate(record: Any) -> None:
    """It is called in evaluation mode in every step; the evaluation comes later."""
    run = record(TEACHER)

    assert run.num_steps == 61
    assert run.why in ("evaluation", "end")


def test_an_exit_that_nobody_announces_is_seen(record: Any) -> None:
    """``raise SystemExit`` calls nothing; the status of the process tells it."""
    assert doubts(record(TEACHER, watch=Watch(until="end"))) == ["FAILED_LATER"]


@pytest.mark.parametrize("script", [ACCUMULATION, CRITIC], ids=["accumulation", "critic"])
def test_a_job_is_watched_until_all_optimizers_have_stepped(record: Any, script: str) -> None:
    """The state of one that has not is still to come, evaluation or not."""
    run = record(script)

    states = {
        label.layer for label in run.traced.timeline.labels if label.category == "optimizer_state"
    }
    assert run.why == "evaluation"
    assert states
    assert doubts(run) == []


def largest_evaluation(run: Any) -> int:
    """Return the most samples of 1 KiB that there were at once after the evaluation began."""
    begins = [mark.event_index for mark in run.traced.marks if mark.phase == "evaluate"]
    events = run.traced.timeline.events[begins[-1] :]
    return max(event.size_bytes for event in events if isinstance(event, Alloc)) // 1024


def test_a_call_that_tries_the_model_out_is_no_evaluation(record: Any) -> None:
    """One sample before the first step and after some; the evaluation comes later."""
    run = record(EVALUATION + "evaluate(1); train(6); evaluate(1); train(50); evaluate(5000, 5000)")

    assert largest_evaluation(run) == 5000
    assert (run.why, doubts(run)) == ("end", [])


def test_small_evaluations_do_not_hide_a_larger_one(record: Any) -> None:
    """Four calls with a quarter of what a step gets may be a sanity check."""
    run = record(EVALUATION + "train(6); evaluate(*[2] * 4); train(50); evaluate(5000, 5000)")

    assert largest_evaluation(run) == 5000
    assert doubts(run) == []


def test_a_data_loader_that_was_not_used_is_doubted(record: Any) -> None:
    """It shuffles, and has larger batches than any so far: a second stage of the training."""
    text = (
        "from torch.utils.data import DataLoader\n"
        "later = DataLoader(range(4096), batch_size=1024, shuffle=True)\n"
        "while True: train(6); evaluate(*[8] * 4)"
    )
    run = record(EVALUATION + text, watch=Watch(seconds=2.0))

    assert "LOADER_NOT_SEEN" in doubts(run)


def test_memory_pools_are_told_apart(record: Any) -> None:
    """What one has cached is not there for the rest of the job; the replay proves it."""
    text = (
        "pool = torch.cuda.MemPool()\n"
        "with torch.cuda.use_mem_pool(pool): x = torch.zeros(1 << 26, device='cuda'); del x\n"
        "y = torch.zeros(1 << 26, device='cuda'); train(6); del pool; train(6)\n"
    )
    run = record(EVALUATION + text)

    assert len(run.traced.timeline.private_streams) == 1
    assert doubts(run) == []


@pytest.mark.parametrize(("size", "want"), [(1, ["EVALUATION_NOT_REACHED"]), (8, [])])
def test_a_single_call_counts_if_it_gets_as_much_as_a_step(
    record: Any, size: int, want: list[str]
) -> None:
    """All of the validation data at once; nothing else comes in time."""
    text = f"train(6); evaluate({size})\nwhile True: train(1)"
    run = record(EVALUATION + text, watch=Watch(seconds=2.0))

    assert (run.why, doubts(run)) == ("time", want)


def test_an_evaluation_whose_batches_vary_is_seen_to_its_end(record: Any) -> None:
    """However many shorter ones come before the longest."""
    run = record(EVALUATION + LENGTHS + "while True: train(1)")

    assert largest_evaluation(run) == 8 * 4000
    assert (run.why, doubts(run)) == ("evaluation", [])


def test_an_evaluation_whose_batches_vary_and_does_not_end_is_doubted(record: Any) -> None:
    """Longer ones may come."""
    text = EVALUATION + LENGTHS + "while True: evaluate(100, 101)"
    run = record(text.replace("train(6)\nwhile", "while"), watch=Watch(seconds=2.0))

    assert (run.why, doubts(run)) == ("time", ["EVALUATION_NOT_REACHED"])
    assert "in the middle of an evaluation" in run.traced.doubts[0].message


def test_what_a_job_keeps_with_every_step_is_seen(record: Any) -> None:
    """256 KiB of outputs, beside a model that takes far more; losses are nothing."""
    begin = "large = torch.zeros(1 << 28, device='cuda'); kept = []\nwhile True:\n    train(1)\n"
    grows = record(EVALUATION + begin + "    kept.append(batch(256))", num_steps=20)
    lists = record(EVALUATION + begin + "    kept.append(batch(1).sum())", num_steps=20)

    assert "STILL_GROWING" in doubts(grows)
    assert "256.00 KiB more with every step" in str(grows.traced.doubts)
    assert "STILL_GROWING" not in doubts(lists)
    assert "kept 512 bytes more with every step" in str(lists.traced.notes)


def _sleepers() -> Iterator[psutil.Process]:
    for one in psutil.process_iter():
        try:
            if one.cmdline()[1:] == ["4242.5"] and one.uids().real == os.getuid():
                yield one
        except psutil.Error:
            continue


def test_a_search_is_not_admitted_by_its_first_training(record: Any) -> None:
    """What a later turn of the loop takes was not seen."""
    text = """
for size in (8, 80_000):
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(6): step(model(batch(size)).sum())
    evaluate(8, 8, 8, 8)
    for _ in range(6): step(model(batch(size)).sum())
"""

    assert doubts(record(EVALUATION + text)) == ["TRAINS_AGAIN"]


def test_what_comes_back_every_few_steps_is_seen(record: Any) -> None:
    """After an evaluation, too: the job is watched for a few steps more."""
    text = """
kept = []
for i in range(200):
    step(model(batch()).sum())
    if i % 10 == 9:
        kept.append(torch.zeros(1 << 20, device="cuda"))
        evaluate(8, 8)
"""
    run = record(EVALUATION + text, usual_steps=64)

    assert (run.why, doubts(run)) == ("evaluation", ["STILL_GROWING"])


@pytest.mark.slow  # a minute of silence is what it waits for
def test_a_daemon_ends_with_the_run(record: Any) -> None:
    """It has left its parents, its session and its group."""
    record(DAEMON)

    assert not list(_sleepers())
