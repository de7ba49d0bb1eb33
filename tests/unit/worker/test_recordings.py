"""Runs of our engines as recordings."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest

from memgate.gpus import CATALOGUE, parse_gpu
from memgate.run_key import GpuTraits
from memgate.timeline import Alloc, Phase, PhaseStart, Timeline
from memgate.timeline_file.recorded import JobMark, JobPhase
from memgate.timeline_file.writing import write_timeline
from memgate_worker.engines.traced import TracedJob
from memgate_worker.recordings import estimate_recording, mark_steps, record_run
from tests.timeline_files import make_plain

A100 = CATALOGUE["a100-80"]
BETWEEN, FORWARD, BACKWARD, OPTIMIZER = Phase


def _traced(engine: str = "phantom", *, cudnn_benchmark: bool = False) -> TracedJob:
    return TracedJob(
        timeline=make_plain().timeline,
        engine=engine,
        runtime="torch-2.14",
        versions={"torch": "2.14.1"},
        alloc_conf="",
        num_parameters=7,
        notes=(),
        architectures=("sm_80",),
        cudnn_benchmark=cudnn_benchmark,
        seconds=1.0,
    )


@pytest.mark.parametrize(
    ("traced", "want"),
    [
        (_traced(), (108, None)),
        (_traced(cudnn_benchmark=True), (108, A100.memory_bytes)),
        (_traced("profile"), (108, None)),
    ],
    ids=["phantom", "benchmark", "profile"],
)
def test_a_recording_has_the_traits_of_its_run(
    traced: TracedJob, want: tuple[int | None, int | None]
) -> None:
    """Those that the key of the run has."""
    recorded = record_run(traced, A100, command=["python", "train.py"], cudnn="9.8.0")

    assert recorded.gpu.traits == GpuTraits(
        compute_capability=(8, 0), multiprocessors=want[0], memory_bytes=want[1]
    )
    assert (recorded.command, recorded.cudnn) == (("python", "train.py"), "9.8.0")
    assert recorded.timeline == traced.timeline


@pytest.mark.parametrize(
    ("phases", "want"),
    [
        ([], []),
        ([FORWARD, BACKWARD, OPTIMIZER, FORWARD, BACKWARD, OPTIMIZER], [0, 3]),
        ([BETWEEN, FORWARD, BACKWARD, FORWARD, BACKWARD, OPTIMIZER, FORWARD], [1, 6]),
        ([FORWARD, BACKWARD, BETWEEN, FORWARD, BACKWARD], [0, 3]),
    ],
    ids=["nothing", "plain", "accumulation", "SGD"],
)
def test_steps_are_found_by_their_phases(phases: list[Phase], want: list[int]) -> None:
    """Before the first forward pass, the job loads."""
    timeline = Timeline(
        events=tuple(Alloc(number, 1) for number in range(9)),
        phases=tuple(PhaseStart(number, phase) for number, phase in enumerate(phases)),
    )

    load, *steps = mark_steps(timeline)

    assert load == JobMark(0, JobPhase.LOAD)
    assert steps == [JobMark(at, JobPhase.TRAIN, step) for step, at in enumerate(want)]


def test_a_recording_is_timed_like_any_answer() -> None:
    """Nothing is run."""
    file = io.BytesIO(write_timeline(replace(make_plain(), command=())))

    said, traced, needs = estimate_recording(
        file, parse_gpu("rtx-3060"), alloc_conf="backend:native"
    )

    assert set(said.timings_ms) == {"run", "trace", "replay", "total"}
    assert said.timings_ms["run"] == 0
    assert (traced.alloc_conf, traced.engine) == ("backend:native", "phantom")
    assert needs.ample.peak_reserved_bytes == said.peak_reserved_bytes
