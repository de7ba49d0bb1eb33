"""What counts as a step and as an evaluation under ``memgate run``, and what ends with it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import psutil
import pytest

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


def _sleepers() -> Iterator[psutil.Process]:
    for one in psutil.process_iter():
        try:
            if one.cmdline()[1:] == ["4242.5"] and one.uids().real == os.getuid():
                yield one
        except psutil.Error:
            continue


def test_a_daemon_ends_with_the_run(record: Any) -> None:
    """It has left its parents, its session and its group."""
    record(DAEMON)

    assert not list(_sleepers())
