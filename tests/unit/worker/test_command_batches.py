"""The largest batch of a command: what is run on the way to it, and what proves it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memgate.errors import UnsupportedJobError
from memgate.gpus import GpuTarget, find_gpu
from memgate.max_batch import MaxBatch
from memgate.report import Reason
from memgate.timeline import Alloc, Category, Free, Label, Timeline
from memgate.timeline_file.recorded import BatchShape
from memgate_worker.engines.traced import TracedJob
from memgate_worker.recorder import batches
from memgate_worker.recorder.question import CommandQuestion
from memgate_worker.recorder.reading import CommandRun
from tests.builders import mib

T4 = find_gpu("t4")

#: what a job allocates in its steps, and after them in an evaluation, in MiB, for a batch size
Sizes = Callable[[int], list[int]]

DOUBT = Reason(code="INPUT_SHAPES_VARY", message="they do")


@pytest.fixture
def find(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Find the largest batch of a made-up job; return it, and the sizes that were told of."""

    def search(
        steps: Sizes, evaluation: Sizes, *doubts: Reason, num_samples: int = 1 << 30
    ) -> tuple[MaxBatch, list[int]]:
        def record(question: CommandQuestion) -> CommandRun:
            size = int(question.command[-1])
            is_short = question.watch.steps is not None
            allocated = steps(size) + ([] if is_short else evaluation(size))
            events = [
                event
                for block, one in enumerate(allocated)
                for event in (Alloc(block, mib(one)), Free(block))
            ]
            traced = TracedJob(
                timeline=Timeline(
                    events=tuple(events),
                    labels=tuple(Label(Category.ACTIVATIONS, "") for _ in allocated),
                ),
                engine="phantom",
                runtime="torch-2.14",
                versions={},
                alloc_conf="",
                num_parameters=0,
                notes=(),
                doubts=doubts,
                seconds=0.0,
            )
            batch = BatchShape("0", (min(size, num_samples), 8), "float32", 6)
            return CommandRun(
                traced=traced,
                batches=(batch,),
                cudnn=None,
                num_steps=6,
                why="end",
                peak_bytes=0,
                is_protected=True,
            )

        monkeypatch.setattr(batches, "record_command", record)
        question = CommandQuestion(
            command=("train", "{batch}"), directory=tmp_path, environment={}, gpu=T4
        )
        told: list[int] = []
        found = batches.find_largest_batch_of(
            question, GpuTarget(gpu=T4), start=2, on_size=lambda size, _: told.append(size)
        )
        return found, told

    return search


def proof(found: MaxBatch) -> dict[int, str]:
    """Return the decisions about the result and the one after it."""
    largest = found.batch_size or 0
    return {
        one.batch_size - largest: one.decision.value
        for one in found.tried
        if one.batch_size in (largest, largest + 1)
    }


@pytest.mark.parametrize(
    "steps",
    [
        lambda size: [18 * size],
        lambda size: [18 * size + (900 if size < 8 else 0)],
        lambda size: [18 * size + (9000 if size > 600 else 0)],
        lambda size: [18 * size, *([1] if size > 8 else [])],
        lambda size: [18 * size, *([1] if size > 500 else [])],
        lambda size: [20 * (-(-size // 100) * 100)],
    ],
    ids=["a line", "other kernels", "a jump", "other events", "others later", "stairs"],
)
def test_the_result_and_the_next_one_were_run(find: Any, steps: Sizes) -> None:
    """Whatever the line says; and each size is told of once."""
    found, told = find(steps, lambda _: [])

    assert proof(found)[0] == "admit"
    assert proof(found)[1] in ("reject", "uncertain")
    assert len(told) == len(set(told)) <= 25


def test_a_line_needs_four_runs_and_the_whole_one(find: Any) -> None:
    """Two that show the line, the result and the next."""
    found, told = find(lambda size: [18 * size], lambda _: [])

    assert told == [2, 4, found.batch_size, found.batch_size + 1]
    assert found.is_monotone


@pytest.mark.parametrize("doubts", [(), (DOUBT,)], ids=["plain", "doubted"])
def test_an_evaluation_that_takes_more_decides(find: Any, doubts: tuple[Reason, ...]) -> None:
    """The search goes on with whole runs, and goes by sizes: doubts are the same for all."""
    found, _ = find(lambda size: [18 * size], lambda size: [36 * size], *doubts)

    alone, _ = find(lambda size: [36 * size], lambda _: [])
    assert found.batch_size == alone.batch_size
    assert proof(found)[0] == ("uncertain" if doubts else "admit")
    assert found.is_monotone


def test_data_without_so_many_samples_end_the_search(find: Any) -> None:
    """Larger batches would be the same one, and every size would be admitted."""
    with pytest.raises(UnsupportedJobError, match=r"are the same at \{batch\} \d+ and \d+"):
        find(lambda size: [18 * min(size, 100)], lambda _: [], num_samples=100)


def test_no_batch_may_fit(find: Any) -> None:
    """Then there is nothing to watch as a whole."""
    found, told = find(lambda size: [20_000 + size], lambda _: [])

    assert found.batch_size is None
    assert told == [2, 4, 1]
