"""Which ranks of a command are run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from memgate.errors import InputError, TimeLimitError
from memgate.gpus import find_gpu
from memgate.timeline import Alloc, Timeline
from memgate.units import GIB
from memgate_worker.engines.traced import TracedJob
from memgate_worker.recorder import ranks
from memgate_worker.recorder.listening import HeardWorld
from memgate_worker.recorder.question import CommandQuestion
from memgate_worker.recorder.reading import CommandRun

#: records all ranks of a command whose ranks take so many bytes, and says which were asked for
Record = Callable[..., tuple[CommandRun, list[int]]]


@pytest.fixture
def record(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Record:
    """Run commands that only say how much each rank takes."""

    def record(
        peaks: Callable[[int], int],
        world: HeardWorld | None,
        *,
        environment: Mapping[str, str] = {},  # not changed
        asked: Mapping[str, Any] = {},  # not changed
        traffic: Mapping[str, int] = {},  # not changed
        **fields: Any,
    ) -> tuple[CommandRun, list[int]]:
        questions: list[int] = []

        def record_rank(question: CommandQuestion, **_: object) -> CommandRun:
            questions.append(question.rank)
            peak = peaks(question.rank)
            traced = TracedJob(
                timeline=Timeline(events=(Alloc(0, peak),)),
                engine="phantom",
                runtime="",
                versions={},
                alloc_conf="",
                num_parameters=0,
                notes=(),
                rank=question.rank,
                world_size=world.size if world else 1,
                traffic=dict(traffic),
                seconds=0.0,
            )
            usual: dict[str, Any] = {
                "batches": (),
                "cudnn": None,
                "num_steps": 4,
                "why": "end",
                "is_protected": True,
            }
            return CommandRun(
                traced=traced,
                peak_bytes=peak,
                world=world,
                rank=question.rank,
                **(usual | fields),
            )

        monkeypatch.setattr(ranks, "record_rank", record_rank)
        question = CommandQuestion(
            command=("train",), directory=tmp_path, environment=environment, gpu=find_gpu("t4")
        )
        return ranks.record_command(replace(question, **asked)), questions

    return record


def _doubts(run: CommandRun) -> list[str]:
    return [doubt.code for doubt in run.traced.doubts]


def test_a_job_of_one_process_is_run_once(record: Record) -> None:
    """As ever."""
    run, asked = record(lambda _: GIB, None)

    assert (asked, run.traced.ranks, _doubts(run)) == ([0], (run.traced,), [])


def test_first_and_last_are_run_where_they_are_alike(record: Record) -> None:
    """Whatever the others are."""
    run, asked = record(lambda rank: GIB + rank, HeardWorld(32, 8, 4, "torchrun"))

    assert asked == [0, 31]
    assert [one.rank for one in run.traced.ranks] == [0, 31]
    assert _doubts(run) == []


def test_ranks_between_those_that_differ_are_run(record: Record) -> None:
    """Until neighbours are alike: here, the last four are another stage."""
    run, asked = record(lambda rank: GIB * (1 + (rank >= 4)), HeardWorld(8, 8, 1, "torchrun"))

    assert asked == [0, 7, 3, 5, 4]
    assert [one.rank for one in run.traced.ranks] == [0, 3, 4, 5, 7]
    assert _doubts(run) == []


def test_there_is_an_end_to_the_ranks_that_are_run(record: Record) -> None:
    """Where all of them differ, others may need more."""
    run, asked = record(lambda rank: GIB * (1 + rank), HeardWorld(64, 8, 8, "torchrun"))

    assert len(asked) == ranks.MAX_RANKS
    assert _doubts(run) == ["RANKS_NOT_RUN"]


def test_a_rank_of_each_stage_is_run(record: Record) -> None:
    """A pipeline says which those are, whatever they take."""
    _, asked = record(lambda _: GIB, HeardWorld(8, 8, 1, "torchrun"), stages=(0, 2, 4, 6))

    assert asked == [0, 2, 4, 6]


def test_each_rank_may_be_a_stage_where_ranks_send_to_one_another(record: Record) -> None:
    """A pipeline that the job has written itself: the first and the last need not be the most."""
    run, asked = record(
        lambda rank: GIB * (1 + 4 * (rank == 2)),
        HeardWorld(4, 4, 1, "torchrun"),
        traffic={"send": 1024, "all_reduce": 8},
    )

    assert sorted(asked) == [0, 1, 2, 3]
    assert max(one.timeline.events[0].size_bytes for one in run.traced.ranks) == 5 * GIB  # type: ignore[union-attr]
    assert _doubts(run) == []


def test_there_is_an_end_to_stages_that_are_run(record: Record) -> None:
    """Many that are all alike, as with attention around a ring, are taken to be."""
    run, asked = record(lambda _: GIB, HeardWorld(64, 8, 8, "torchrun"), traffic={"receive": 1024})

    assert len(asked) == ranks.MAX_RANKS
    assert _doubts(run) == []


def test_only_ranks_are_run_that_the_command_starts(record: Record) -> None:
    """A script that starts the processes of its own node knows no others."""
    run, asked = record(lambda _: GIB, HeardWorld(16), present=frozenset(range(8)))

    assert (asked, _doubts(run)) == ([0, 7], ["RANKS_NOT_RUN"])


def test_variables_make_any_rank_of_a_process(record: Record) -> None:
    """As Slurm starts it."""
    environment = {"SLURM_NTASKS": "16", "SLURM_NNODES": "2"}
    _, asked = record(
        lambda _: GIB, HeardWorld(16), present=frozenset({0}), environment=environment
    )

    assert asked == [0, 15]


def test_a_command_is_not_run_again_that_changes_files(record: Record) -> None:
    """Then the other ranks are not known."""
    run, asked = record(lambda _: GIB, HeardWorld(8, 8, 1, "torchrun"), is_protected=False)

    assert (asked, _doubts(run)) == ([0], ["RANKS_NOT_RUN"])


def test_a_rank_that_takes_too_long_is_doubted(record: Record) -> None:
    """The time is for all of them."""

    def peaks(rank: int) -> int:
        if rank:
            raise TimeLimitError("it took too long")
        return GIB

    run, _ = record(peaks, HeardWorld(8, 8, 1, "torchrun"))

    assert _doubts(run) == ["RANKS_NOT_RUN"]
    assert "only rank 0 was run" in run.traced.doubts[0].message


def test_ranks_that_share_a_gpu_are_told(record: Record) -> None:
    """With what they take together."""
    run, _ = record(lambda _: GIB, HeardWorld(8, 8, 1, "torchrun"), device=0)

    assert _doubts(run) == ["RANKS_SHARE_A_GPU"]
    assert "up to 8.00 GiB" in run.traced.doubts[0].message


def test_processes_that_a_command_does_not_start_are_refused(record: Record) -> None:
    """A contradiction names both."""
    with pytest.raises(InputError, match=r"--nproc 8, but the command ran as one process"):
        record(lambda _: GIB, None, asked={"nproc": 8})


@pytest.mark.parametrize(
    ("environment", "asked", "want"),
    [
        ({"WORLD_SIZE": "4"}, {"nproc": 8}, "--nproc 8, but .* 4 processes"),
        ({"WORLD_SIZE": "6"}, {"nproc": 4}, "--nproc 4, but .* 6 processes"),
        ({"WORLD_SIZE": "8"}, {"nnodes": 3}, "--nnodes 3, but .* 8 processes"),
        (
            {"SLURM_NTASKS": "16", "SLURM_NNODES": "2"},
            {"nproc": 4},
            r"--nproc 4, but .* 16 processes \(SLURM_NTASKS\), 8 on a node",
        ),
    ],
)
def test_a_part_that_contradicts_variables_is_refused(
    record: Record, environment: dict[str, str], asked: dict[str, int], want: str
) -> None:
    """Processes on a node that are more than all of them, or do not fill nodes."""
    with pytest.raises(InputError, match=want):
        record(lambda _: GIB, None, environment=environment, asked=asked)


def test_variables_of_a_launcher_are_not_those_of_its_processes(record: Record) -> None:
    """Slurm starts torchrun once on each node, and that starts eight processes."""
    environment = {"SLURM_NTASKS": "2", "SLURM_NNODES": "2"}
    _, asked = record(
        lambda _: GIB,
        HeardWorld(16, 8, 2, "torchrun"),
        environment=environment,
        asked={"nproc": 8, "nnodes": 2},
    )

    assert asked == [0, 15]


def test_nodes_fill_what_variables_leave_open(record: Record) -> None:
    """Eight processes on two nodes are four on each."""
    _, asked = record(
        lambda _: GIB,
        HeardWorld(8),
        present=frozenset({0}),
        environment={"WORLD_SIZE": "8"},
        asked={"nnodes": 2},
    )

    assert asked == [0, 7]


def test_variables_that_contradict_the_caller_are_refused(record: Record) -> None:
    """Both are named."""
    with pytest.raises(InputError, match=r"--nproc 8 --nnodes 2 are 16 .* WORLD_SIZE says 4"):
        record(
            lambda _: GIB,
            None,
            environment={"WORLD_SIZE": "4"},
            asked={"nproc": 8, "nnodes": 2},
        )
