"""What a recording says about the GPU it was made for, and about others."""

from __future__ import annotations

from typing import Any

import pytest

from memgate.context import USUAL_CONTEXT_BYTES
from memgate.decision import Decision
from memgate.errors import NoKernelsError, TimelineFileError
from memgate.gpus import CATALOGUE, GpuTarget, parse_gpu
from memgate.report import RECORDED_FOR_ANOTHER_GPU, Estimate, Reason
from memgate.run_key import GpuTraits
from memgate.timeline import Alloc, Free, SetFraction, Timeline
from memgate.timeline_file.answers import estimate_recorded, find_recorded_needs
from memgate.timeline_file.recorded import JobMark, JobPhase, RecordedGpu, RecordedTimeline
from memgate.units import GIB, MIB
from tests.timeline_files import make_plain, make_recorded

RTX_3060 = CATALOGUE["rtx-3060"]


def _ask(recorded: RecordedTimeline, gpu: object = "rtx-3060", **more: Any) -> Estimate:
    return estimate_recorded(recorded, parse_gpu(gpu), **more)


def _codes(said: Estimate) -> list[str]:
    return [reason.code for reason in said.reasons]


def test_a_replay_is_exact_for_the_gpu_of_the_recording() -> None:
    """A plain answer, by the engine that recorded it, with what was recorded."""
    said = _ask(make_recorded())

    assert (said.decision, said.engine) == (Decision.ADMIT, "phantom")
    assert said.runtime == "torch 2.9.1, cuDNN 9.8.0"
    assert said.versions == {"python": "3.11.9", "torch": "2.9.1"}
    assert _codes(said) == ["FITS", "FEWER_STEPS"]
    assert said.fits_on == ["rtx-3060"]
    assert said.recording is not None
    assert said.recording.model_dump() == {
        "command": "python train.py --name 'my run'",
        "gpu": "rtx-3060",
        "num_steps": 2,
        "batches": ["input_ids: int64 [8, 512], 3 times"],
        "memgate": "1.2.3",
    }


@pytest.mark.parametrize(
    ("least_bytes", "want_decision", "want_first"),
    [
        (GIB, Decision.UNCERTAIN, "SIZES_DEPEND_ON_DATA"),
        (13 * GIB, Decision.REJECT, "DOES_NOT_FIT"),
        (None, Decision.REJECT, "DOES_NOT_FIT"),
    ],
)
def test_a_job_that_fits_with_other_data_is_not_rejected(
    least_bytes: int | None, want_decision: Decision, want_first: str
) -> None:
    """It is rejected only if it does not fit at either end."""
    recorded = make_plain(
        timeline=Timeline(events=(Alloc(0, 14 * GIB),)),
        notes=(Reason(code="SIZES_DEPEND_ON_DATA", message="a range"),),
        least_segments_bytes=least_bytes,
    )

    said = _ask(recorded)

    assert (said.decision, said.reasons[0].code) == (want_decision, want_first)


@pytest.mark.parametrize(
    ("gpu", "want_step"),
    [
        ("a100-80", "memgate run --gpu a100-80 -- python train.py --name 'my run'"),
        (
            {"memory_bytes": 16 * GIB, "compute_capability": "8.0"},
            """run --gpu '{"memory_bytes": 17179869184, "compute_capability": "8.0"}' -- python""",
        ),
    ],
)
def test_on_another_gpu_it_is_never_admitted(gpu: object, want_step: str) -> None:
    """The reason names both, and the command that records it there."""
    said = _ask(make_plain(), gpu)

    assert said.decision is Decision.UNCERTAIN
    assert _codes(said) == [RECORDED_FOR_ANOTHER_GPU, "FITS"]
    message = said.why(RECORDED_FOR_ANOTHER_GPU)
    assert "recorded for rtx-3060 (compute capability 8.6, 28 multiprocessors), and" in message
    assert want_step in message


def test_a_job_spec_is_recorded_by_estimate() -> None:
    """It has no command."""
    message = _ask(make_plain(command=()), "a100-80").why(RECORDED_FOR_ANOTHER_GPU)

    assert message.endswith("memgate estimate SPEC --gpu a100-80 -o FILE")


def test_a_rejection_stays_one_on_another_gpu() -> None:
    """What does not fit by far is not made to fit by other kernels."""
    events = (Alloc(0, 30 * GIB), Free(0))

    said = _ask(make_plain(timeline=Timeline(events=events)), "rtx-3090")

    assert said.decision is Decision.REJECT
    assert _codes(said) == ["DOES_NOT_FIT", RECORDED_FOR_ANOTHER_GPU]
    assert said.fits_on == []


def test_memory_is_a_trait_only_where_it_matters() -> None:
    """With cudnn.benchmark, only plans that fit are tried."""
    a100 = CATALOGUE["a100-80"]
    traits = GpuTraits(compute_capability=(8, 0), multiprocessors=108)
    gpu = RecordedGpu(name=a100.name, memory_bytes=a100.memory_bytes, traits=traits)
    benchmark = RecordedGpu(
        name=a100.name,
        memory_bytes=a100.memory_bytes,
        traits=GpuTraits(
            compute_capability=(8, 0), multiprocessors=108, memory_bytes=a100.memory_bytes
        ),
    )

    assert _ask(make_plain(gpu=gpu), "a100-40").decision is Decision.ADMIT
    assert _ask(make_plain(gpu=gpu), "a100-40").fits_on == ["a100-40", "a100-80", "a800-80"]
    said = _ask(make_plain(gpu=benchmark), "a100-40")
    assert said.decision is Decision.UNCERTAIN
    assert "108 multiprocessors, 42298834944 bytes of memory)" in said.reasons[0].message
    assert _ask(make_plain(gpu=benchmark), "a100-80").decision is Decision.ADMIT


def test_a_run_on_the_cpu_depends_on_the_compute_capability_alone() -> None:
    """As in the key of such a run."""
    traits = GpuTraits(compute_capability=(8, 6))
    gpu = RecordedGpu(name="rtx-3060", memory_bytes=RTX_3060.memory_bytes, traits=traits)
    recorded = make_plain(gpu=gpu, engine="profile")

    assert _ask(recorded, "rtx-3090").decision is Decision.ADMIT
    assert "(compute capability 8.6), and a100-80" in _ask(recorded, "a100-80").reasons[0].message


def test_doubts_of_the_recording_take_the_admission_away() -> None:
    """Everywhere, so that it fits on nothing."""
    doubt = Reason(code="EVALUATION_NOT_REACHED", message="the evaluation was not seen")

    said = _ask(make_plain(doubts=(doubt,)))

    assert (said.decision, _codes(said)) == (
        Decision.UNCERTAIN,
        ["EVALUATION_NOT_REACHED", "FITS"],
    )
    assert said.fits_on == []


def test_other_settings_of_the_allocator_are_replayed() -> None:
    """In place of the recording's own."""
    events = (Alloc(0, 100 * MIB + 1), Free(0), Alloc(1, 60 * MIB), Alloc(2, 60 * MIB))
    recorded = make_plain(timeline=Timeline(events=events), alloc_conf="max_split_size_mb:20")

    own = _ask(recorded).peak_reserved_bytes
    other = _ask(recorded, alloc_conf="expandable_segments:True").peak_reserved_bytes

    assert (own, other) == (222 * MIB, 120 * MIB)


def test_a_pytorch_without_kernels_for_the_gpu_is_named() -> None:
    """The job would not start there."""
    with pytest.raises(NoKernelsError, match=r"torch 2.9.1, .* not built for t4, only for sm_80"):
        _ask(make_recorded(), "t4")


@pytest.mark.parametrize("events", [(Alloc(0, 2**43),), (SetFraction(0.0), Alloc(0, 2 * MIB))])
def test_what_cannot_have_been_recorded_is_refused(events: Any) -> None:
    """No memory would ever be enough, so that the search for it would not end."""
    recorded = make_plain(timeline=Timeline(events=(Alloc(9, 5), *events)))

    with pytest.raises(TimelineFileError, match=r"event \d finds no memory on a GPU of 8 TiB"):
        find_recorded_needs(recorded)


def test_the_peak_of_each_phase_is_told() -> None:
    """What was allocated before counts, too; of several spans of a phase, the largest."""
    events = (
        *(Alloc(0, 100 * MIB), Alloc(1, 200 * MIB), Free(1), Alloc(2, 400 * MIB)),
        *(Free(2), Alloc(3, 300 * MIB), Free(3)),
    )
    marks = (
        JobMark(0, JobPhase.LOAD),
        JobMark(1, JobPhase.TRAIN, 0),
        JobMark(3, JobPhase.EVALUATE),
        JobMark(5, JobPhase.TRAIN, 1),
    )
    recorded = make_plain(timeline=Timeline(events=events), marks=marks)

    said = _ask(recorded)

    assert said.phases == {
        "load": 100 * MIB + USUAL_CONTEXT_BYTES,
        "train": 400 * MIB + USUAL_CONTEXT_BYTES,
        "evaluate": 500 * MIB + USUAL_CONTEXT_BYTES,
    }
    assert max(said.phases.values()) == said.peak_allocated_bytes + USUAL_CONTEXT_BYTES


def test_a_phase_before_anything_is_reserved_has_the_context_alone() -> None:
    """Nothing was allocated in it."""
    marks = (JobMark(0, JobPhase.LOAD), JobMark(1, JobPhase.TRAIN))
    recorded = make_plain(
        timeline=Timeline(events=(Alloc(0, 0), Alloc(1, MIB), Free(1))), marks=marks
    )

    assert _ask(recorded).phases["load"] == USUAL_CONTEXT_BYTES


def test_needs_can_be_shared_between_gpus() -> None:
    """The same answer, without another replay."""
    recorded = make_plain()
    needs = find_recorded_needs(recorded)

    for name in ("rtx-3060", "a100-80"):
        target = GpuTarget(gpu=CATALOGUE[name])
        assert estimate_recorded(recorded, target, needs=needs) == _ask(recorded, name)
