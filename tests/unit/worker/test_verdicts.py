"""What is said of a job, whoever runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from memgate import breakdown, capacity
from memgate.allocator.config import AllocatorConfig
from memgate.allocator.replay import Replay, Replayer
from memgate.errors import (
    JobFailedError,
    MemgateError,
    NoKernelsError,
    ProcessLostError,
    RuntimeMissingError,
    TimeLimitError,
    UnsupportedJobError,
)
from memgate.gpus import CATALOGUE, GpuSpec, GpuTarget, find_gpu, list_gpus
from memgate.jobspec import JobSpec, parse_job_spec
from memgate.report import FitEntry, Reason
from memgate.timeline import Alloc, Category, Label, Timeline
from memgate_worker.engines.traced import TracedJob
from memgate_worker.verdicts import estimate_run, fit_everywhere, largest_batch
from tests.builders import mib

JOB = parse_job_spec(
    {
        "model": {"source": "torchvision", "name": "vgg16"},
        "input": {"shape": [3, 8, 8]},
        "batch_size": 8,
    }
)

#: of GPUs that differ in what kernels depend on
NUM_KINDS = len({(gpu.compute_capability, gpu.multiprocessors) for gpu in CATALOGUE.values()})

_DOUBT = Reason(code="DOUBT", message="it may be far off")


def _run(job: JobSpec, _: GpuSpec) -> TracedJob:
    """Take 1000 MiB, and 100 MiB a sample."""
    events = tuple(Alloc(number, mib(100)) for number in range(10 + job.batch_size))
    return TracedJob(
        timeline=Timeline(events=events, labels=(Label(Category.BATCH, ""),) * len(events)),
        engine="phantom",
        runtime="torch-2.14",
        versions={},
        alloc_conf="",
        num_parameters=0,
        notes=(),
        seconds=0.0,
    )


def _failing(
    is_failing: Callable[[GpuSpec], bool], error: MemgateError
) -> Callable[..., TracedJob]:
    def run(job: JobSpec, gpu: GpuSpec) -> TracedJob:
        if is_failing(gpu):
            raise error
        return _run(job, gpu)

    return run


@pytest.mark.parametrize("start", [1, 8, 64, 5000])
def test_the_largest_batch_is_admitted_and_the_next_is_not(start: int) -> None:
    """Found in a handful of runs from wherever one starts, and each of them is told."""
    heard: dict[int, str] = {}
    job = JOB.model_copy(update={"batch_size": start})
    target = GpuTarget(gpu=find_gpu("rtx-3060"))

    found = largest_batch(
        _run, job, target, on_said=lambda n, said: heard.update({n: said.decision})
    )

    assert found is not None
    assert found.batch_size is not None
    assert heard[found.batch_size] == "admit"
    assert heard[found.batch_size + 1] != "admit"
    assert heard == {tried.batch_size: tried.decision for tried in found.tried}
    assert len(heard) <= 6


def _run_on_a_line(job: JobSpec, _: GpuSpec, *, bend: int = 1 << 30) -> TracedJob:
    """Take 1000 MiB, and 100 MiB a sample; from a bend on, twice that for each more."""
    samples = job.batch_size + max(0, job.batch_size - bend)
    events = (Alloc(0, mib(1000)), Alloc(1, mib(100) * samples))
    timeline = Timeline(events=events, labels=(Label(Category.BATCH, ""),) * 2)
    return replace(_run(JOB, find_gpu("t4")), timeline=timeline)


@pytest.mark.parametrize("start", [1, 8, 20, 64, 5000])
def test_two_runs_tell_all_batches_and_a_third_proves_it(start: int) -> None:
    """From wherever one starts; the next larger batch is read off the line, and that is said."""
    target = GpuTarget(gpu=find_gpu("rtx-3060"))
    job = JOB.model_copy(update={"batch_size": start})

    found = largest_batch(_run_on_a_line, job, target)

    assert found is not None
    assert found.batch_size is not None
    assert len(found.tried) <= 3
    decisions = [
        estimate_run(
            _run_on_a_line(JOB.model_copy(update={"batch_size": size}), target.gpu), target
        )
        for size in (found.batch_size, found.batch_size + 1)
    ]
    assert [said.decision == "admit" for said in decisions] == [True, False]
    if len(found.tried) == 3:
        assert f"a run at {found.batch_size:,} took exactly that" in found.proof
        assert f"{found.batch_size + 1:,} needs" in found.proof


@pytest.mark.parametrize("bend", range(70, 115, 4))
def test_a_line_that_bends_is_left(bend: int) -> None:
    """What the third run does not confirm is not believed: more sizes are run."""
    target = GpuTarget(gpu=find_gpu("rtx-3060"))
    run = partial(_run_on_a_line, bend=bend)

    found = largest_batch(run, JOB, target)

    assert found is not None
    assert found.batch_size is not None
    sizes = (found.batch_size, found.batch_size + 1)
    jobs = [JOB.model_copy(update={"batch_size": size}) for size in sizes]
    said = [estimate_run(run(job, target.gpu), target) for job in jobs]
    assert [one.decision == "admit" for one in said] == [True, False]
    assert len(found.tried) <= 6


def test_a_job_that_never_fits_takes_three_runs() -> None:
    """The smallest batch is run, too."""
    job = JOB.model_copy(update={"batch_size": 5000})
    gpu = replace(find_gpu("t4"), memory_bytes=mib(900))

    found = largest_batch(_run_on_a_line, job, GpuTarget(gpu=gpu))

    assert found is not None
    assert found.batch_size is None
    assert found.tried[0].batch_size == 1
    assert len(found.tried) <= 3


def test_what_is_in_doubt_fits_nowhere() -> None:
    """The doubt is the same on every GPU."""
    traced, target = _run(JOB, find_gpu("t4")), GpuTarget(gpu=find_gpu("t4"))
    doubt = Reason(code="EVALUATION_NOT_REACHED", message="it was not")

    plain, doubted = (
        estimate_run(replace(traced, doubts=doubts), target) for doubts in ((), (doubt,))
    )

    assert (plain.decision, plain.fits_on[0]) == ("admit", "a100-40-1g.5gb")
    assert (doubted.decision, doubted.fits_on) == ("uncertain", [])


def test_a_search_that_must_end_ends() -> None:
    """The caller says when; what was told until then is true."""
    answers = iter([True, True, False])
    heard: list[int] = []

    found = largest_batch(
        _run,
        JOB,
        GpuTarget(gpu=find_gpu("rtx-3060")),
        goes_on=lambda: next(answers),
        on_said=lambda size, _: heard.append(size),
    )

    assert found is None
    assert len(heard) == 2


def test_every_gpu_is_told_the_smallest_first() -> None:
    """The whole catalogue, as it becomes known and in the end."""
    heard: list[FitEntry] = []

    fit = fit_everywhere(_run, JOB, heard.extend)

    assert [entry.gpu for entry in fit.gpus] == [gpu.name for gpu in list_gpus()]
    assert fit.smallest == "a100-40-1g.5gb"
    assert {entry.gpu for entry in heard} == set(CATALOGUE)


@pytest.mark.parametrize(
    "error", [NoKernelsError("none"), JobFailedError("no bfloat16"), UnsupportedJobError("no loop")]
)
def test_gpus_on_which_a_job_fails_are_unknown(error: MemgateError) -> None:
    """With why; the others are told."""
    fit = fit_everywhere(_failing(lambda gpu: gpu.compute_capability < (7, 5), error), JOB)

    unknown = {entry.gpu: entry.reason for entry in fit.gpus if entry.decision == "unknown"}
    assert set(unknown) == {
        gpu.name for gpu in CATALOGUE.values() if gpu.compute_capability < (7, 5)
    }
    assert {(reason.code, reason.message) for reason in unknown.values()} == {
        (error.code, error.message)
    }
    assert fit.smallest == "a100-40-1g.5gb"


@pytest.mark.parametrize(
    ("is_failing", "error"),
    [
        pytest.param(lambda _: True, JobFailedError("always"), id="fails-on-all"),
        pytest.param(
            *(lambda gpu: gpu.generation == "7.5", ProcessLostError("killed")),
            id="its-process-was-killed",
        ),
        pytest.param(
            *(lambda gpu: gpu.generation == "7.5", RuntimeMissingError("none")),
            id="the-operators",
        ),
        pytest.param(
            *(lambda gpu: gpu.generation == "7.5", TimeLimitError("600 s")), id="over-a-limit"
        ),
    ],
)
def test_what_is_no_answer_is_an_error(
    is_failing: Callable[[GpuSpec], bool], error: MemgateError
) -> None:
    """A job that fails everywhere is broken; other errors are not about the job on that GPU."""
    with pytest.raises(type(error), match=error.message):
        fit_everywhere(_failing(is_failing, error), JOB)


def _counting(run: Callable[..., TracedJob]) -> tuple[list[str], Callable[..., TracedJob]]:
    asked: list[str] = []

    def trace(job: JobSpec, gpu: GpuSpec) -> TracedJob:
        asked.append(gpu.name)
        return run(job, gpu)

    return asked, trace


@pytest.mark.parametrize("engine", ["phantom", "profile"])
def test_only_gpus_near_the_limit_have_a_run_of_their_own(engine: str) -> None:
    """A run for each generation, and for each kind of GPU that has about what the job needs."""
    asked, trace = _counting(_run)
    job = JOB.model_copy(update={"batch_size": 90})  # 10 GB

    fit = fit_everywhere(trace, job, engine=engine)

    shared = {entry.gpu: entry.run_for for entry in fit.gpus if entry.run_for}
    assert set(shared.values()) <= set(asked)
    assert shared["a100-80"] != "a100-80"
    assert {"rtx-3080", "gtx-1080-ti", "rtx-2080-ti"} <= set(asked)
    assert len({gpu.generation for gpu in CATALOGUE.values()}) < len(asked) < 20


@pytest.mark.parametrize("change", [{"cudnn_benchmark": True}, {"doubts": (_DOUBT,)}])
def test_a_run_that_says_little_about_others_is_not_shared(change: dict[str, Any]) -> None:
    """Where memory chooses kernels, or a run is in doubt, each kind of GPU has its own."""
    asked, trace = _counting(lambda job, gpu: replace(_run(job, gpu), **change))

    fit = fit_everywhere(trace, JOB)

    assert len(asked) == NUM_KINDS
    assert not any(entry.run_for for entry in fit.gpus)


def test_a_pytorch_without_kernels_for_a_gpu_is_not_judged_by_another() -> None:
    """Built for one capability of a generation, and not for the next."""
    asked, trace = _counting(
        lambda job, gpu: replace(_run(job, gpu), architectures=("sm_80", "sm_100a"))
    )

    found = {entry.gpu: entry for entry in fit_everywhere(trace, JOB).gpus}

    assert "gb200" in asked
    assert (found["gb300"].decision, found["gb300"].run_for) == ("unknown", None)


def test_a_job_that_fails_is_run_once_a_generation() -> None:
    """It does not fail for its multiprocessors; kernels are a matter of the exact capability."""
    asked, trace = _counting(_failing(lambda _: True, JobFailedError("dies")))
    with pytest.raises(JobFailedError):
        fit_everywhere(trace, JOB)
    assert len(asked) == len({gpu.generation for gpu in CATALOGUE.values()})

    asked, trace = _counting(_failing(lambda _: True, NoKernelsError("none")))
    with pytest.raises(NoKernelsError):
        fit_everywhere(trace, JOB)
    assert len(asked) == NUM_KINDS


def test_fit_says_what_an_estimate_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs with the same events share their replays, and nothing else changes."""

    def run(job: JobSpec, gpu: GpuSpec) -> TracedJob:
        return _run(job.model_copy(update={"batch_size": 40 + gpu.multiprocessors // 20}), gpu)

    num_replays = 0

    class Counting(Replayer):
        def replay(self, config: AllocatorConfig, capacity_bytes: int, **options: Any) -> Replay:
            nonlocal num_replays
            num_replays += capacity_bytes == capacity.AMPLE_BYTES
            return super().replay(config, capacity_bytes, **options)

    monkeypatch.setattr(capacity, "Replayer", Counting)
    fit = fit_everywhere(run, JOB)

    assert num_replays <= len({gpu.multiprocessors // 20 for gpu in CATALOGUE.values()})
    for entry in fit.gpus:
        gpu = find_gpu(entry.gpu)
        own = FitEntry.of(gpu, estimate_run(run(JOB, gpu), GpuTarget(gpu=gpu)))
        assert (entry == own) if entry.run_for is None else (entry.decision == own.decision)


def test_what_a_pytorch_was_not_built_for_is_not_run() -> None:
    """The first run tells what it was built for; the answer is that of a run that fails there."""

    def run(job: JobSpec, gpu: GpuSpec) -> TracedJob:
        assert gpu.has_kernels(["sm_90", "compute_90"]), f"it fails on {gpu.name} anyway"
        return replace(_run(job, gpu), architectures=("sm_90", "compute_90"))

    found = fit_everywhere(run, JOB)

    unknown = {entry.gpu: entry.reason for entry in found.gpus if entry.decision == "unknown"}
    assert set(unknown) == {
        gpu.name for gpu in list_gpus() if not gpu.has_kernels(["sm_90", "compute_90"])
    }
    assert {reason.code for reason in unknown.values()} == {NoKernelsError.code}
    assert "compute capability 7.0" in unknown["v100-16"].message


def test_the_breakdown_of_a_job_is_made_once_for_all_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is of the run with ample memory, whatever GPU is asked about."""
    made: list[Timeline] = []

    def break_down(timeline: Timeline, ample: Replay) -> dict[str, int]:
        made.append(timeline)
        return breakdown.break_down(timeline, ample)

    monkeypatch.setattr(capacity, "break_down", break_down)

    fit_everywhere(_run, JOB)

    assert len(made) == 1
