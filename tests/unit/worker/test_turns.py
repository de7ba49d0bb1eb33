"""Jobs that train several times: the loops in which they make their optimizers."""

from __future__ import annotations

import asyncio
import gc
from typing import Any
from weakref import ref

import pytest

from memgate_worker.hook.memgate_hook.turns import Turns

MAKE_AND_STEP = """
def train():
    optimizer = make()
    for epoch in range(2):
        step(optimizer)
"""

SWEEP = "for size in (1, 2, 3):\n    train()\n    if size == {last}: break\n"


class _Optimizer:
    """Something that can be referred to weakly."""


def _find_loop(text: str, file: str = "/job/sweep.py") -> str:
    """Run a job, and return the loop in which it trains."""
    turns, known = Turns(), list[_Optimizer]()

    def make() -> _Optimizer:
        optimizer = _Optimizer()
        turns.made(optimizer)
        return optimizer

    def step(optimizer: _Optimizer) -> None:
        if optimizer not in known:
            known.append(optimizer)
            turns.first_step(optimizer)

    names: dict[str, Any] = {"make": make, "step": step, "asyncio": asyncio}
    exec(compile(text, file, "exec"), names)
    return turns.loop


@pytest.mark.parametrize(
    ("text", "want"),
    [
        (MAKE_AND_STEP + "train()", ""),
        (MAKE_AND_STEP + SWEEP.format(last=1), "/job/sweep.py:6"),
        (MAKE_AND_STEP + SWEEP.format(last=2), "/job/sweep.py:6"),
        (MAKE_AND_STEP + SWEEP.format(last=3), ""),
        ("while True:\n    optimizer = make()\n    step(optimizer)\n    break", ""),
        ("for a in (1, 2):\n    b = make(); c = make()\n    step(b); step(c)", "/job/sweep.py:1"),
        ("one = make()\nfor epoch in range(3): step(one)", ""),
        ("all = [make() for _ in range(2)]\nfor one in all: step(one)", ""),
        (
            "async def main():\n    one = make()\n    await asyncio.sleep(0)\n    step(one)\n"
            "asyncio.run(main())",
            "",
        ),
    ],
    ids=[
        *("one training", "the first of three", "the second", "all of them"),
        *("a loop that never jumps back", "two optimizers a turn", "epochs", "several at once"),
        "waiting",
    ],
)
def test_a_loop_that_makes_optimizers_trains_again(text: str, want: str) -> None:
    """Unless it has made three turns: then it is known what it does."""
    assert _find_loop(text) == want


@pytest.mark.parametrize(
    ("file", "counts"),
    [
        ("/env/lib/python3.11/site-packages/fire/core.py", False),
        ("/env/lib/python3.11/site-packages/optuna/study/_optimize.py", True),
        ("/usr/lib/python3/dist-packages/anything.py", False),
        (asyncio.__file__, False),
        ("<string>", True),
    ],
)
def test_loops_of_libraries_say_nothing(file: str, counts: bool) -> None:
    """But for those that run trials."""
    found = _find_loop(MAKE_AND_STEP + SWEEP.format(last=1), file)

    assert found == (f"{file}:6" if counts else "")


def test_nothing_of_the_job_is_held() -> None:
    """A frame would hold all that its function has."""
    turns = Turns()

    def make() -> tuple[Any, Any]:
        model, optimizer = _Optimizer(), _Optimizer()
        turns.made(optimizer)
        return ref(model), ref(optimizer)

    made = make()
    gc.collect()

    assert [one() for one in made] == [None, None]
