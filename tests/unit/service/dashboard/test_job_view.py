"""What the page of a job shows."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from memgate.contract import JobRecord, JobState, Priority, Work, WorkKind
from memgate.decision import Decision
from memgate.gpus import CATALOGUE, GpuRequest
from memgate.jobspec import JobSpec
from memgate.layers import Layer
from memgate.report import CommunicationMemory, Estimate, Fit, Reason, RecordingSummary
from memgate.units import GIB
from memgate.views import PhaseSpan, TimelineView
from memgate_service.dashboard.advice import describe_run, propose
from memgate_service.dashboard.job_view import (
    describe_job,
    list_layers,
    list_phases,
    prune_layers,
    slice_breakdown,
    strip_of,
)
from memgate_service.dashboard.rendering import render_part, write_seconds, write_size
from memgate_worker.queue.history import HistoryEntry, JobOutcome
from tests.admission import make_estimate

JOB: dict[str, Any] = {
    "model": {"source": "torchvision", "name": "resnet18"},
    "input": {"shape": [3, 8, 8]},
    "batch_size": 2000,
    "optimizer": {"name": "Adam"},
}


def _record(
    work: Work | None = None,
    size_bytes: int = 4 * GIB,
    *,
    doubts: tuple[Reason, ...] = (),
    **changes: Any,
) -> JobRecord:
    """Make an estimate that was answered, of a job that takes so much at once."""
    asked = Work(
        kind=WorkKind.ESTIMATE, job=JobSpec.model_validate(JOB), gpu=GpuRequest(name="rtx-3060")
    )
    work = work or asked
    gpu = work.gpu.model_dump(exclude_none=True) if work.gpu else "rtx-3060"
    said: Estimate | Fit = make_estimate(size_bytes, gpu, doubts=doubts).model_copy(update=changes)
    return JobRecord(
        id="0" * 32,
        kind=work.kind,
        state=JobState.DONE,
        priority=Priority.NORMAL,
        created_at=datetime(2026, 1, 1, tzinfo=UTC),
        work=work,
        result=said if work.kind is WorkKind.ESTIMATE else Fit(gpus=[], smallest=None),
    )


def test_the_breakdown_fills_its_bar() -> None:
    """In the order of the chart; what is nothing, or less, is left out."""
    slices = slice_breakdown({"activations": 60, "parameters": 40, "batch": 0, "temporary": -5})

    assert [one.name for one in slices] == ["parameters", "activations"]
    assert slices[0].begin == 0
    assert slices[1].begin == slices[0].width
    assert slices[-1].begin + slices[-1].width == pytest.approx(100, abs=6)


def test_small_layers_are_put_together() -> None:
    """So that a tree of thousands fits on a page, and nothing of it is lost."""
    leaves = [Layer(name=f"l{n}", size_bytes=1) for n in range(50)]
    big = Layer(name="big", size_bytes=950)
    whole = Layer(name="", size_bytes=1000, children=(big, *leaves))

    pruned = prune_layers(whole)

    assert [child.name for child in pruned.children] == ["big", "50 smaller"]
    assert sum(child.size_bytes for child in pruned.children) == 1000
    assert [row.depth for row in list_layers(pruned)] == [0, 0]


def test_what_belongs_to_no_layer_has_a_name() -> None:
    """A bar of layers with a hole in it would be a riddle; within a layer, the rest is its own."""
    inner = Layer(name="0", size_bytes=300)
    layer = Layer(name="h", size_bytes=700, children=(inner,))
    whole = Layer(name="", size_bytes=1000, children=(layer,))

    rows = [(row.name, row.size_bytes) for row in list_layers(prune_layers(whole))]

    assert rows == [("h", 700), ("0", 300), ("in no layer", 300)]


def test_phases_are_a_table_of_what_was_held_at_most() -> None:
    """The chart, for readers who cannot see it; a phase of which nothing is shown is left out."""
    view = TimelineView(
        num_events=10,
        peak_event=3,
        events=[0, 3, 6],
        reserved=[5, 9, 9],
        allocated=[4, 8, 2],
        categories={},
        phases=[
            PhaseSpan(phase="forward", begin=0, end=4),
            PhaseSpan(phase="backward", begin=4, end=6),
            PhaseSpan(phase="optimizer", begin=6, end=10),
        ],
        layers=None,
    )

    rows = [(row.phase, row.reserved_bytes, row.allocated_bytes) for row in list_phases(view)]

    assert rows == [("forward", 9, 8), ("optimizer", 9, 2)]


def test_the_strip_has_every_gpu_of_the_catalogue() -> None:
    """By what it needs here, until somebody has asked about all of them; nothing is guessed."""
    cells = strip_of(_record(), None)

    assert {cell.name for cell in cells} == set(CATALOGUE)
    assert [cell.name for cell in cells if cell.is_asked] == ["rtx-3060"]
    known = [cell for cell in cells if cell.decision is not None]
    assert {CATALOGUE[cell.name].generation for cell in known} == {"8"}
    assert {cell.decision for cell in known} == {"admit"}
    assert all(0 < cell.width <= 100 for cell in known)
    assert {"t4", "v100-16", "h200"} <= {cell.name for cell in cells} - {one.name for one in known}


@pytest.mark.parametrize(
    ("size_gib", "want"),
    [
        (7.2, {"rtx-3060": "admit", "rtx-4060": "uncertain", "l4": "admit"}),
        (11.3, {"rtx-3060": "uncertain", "rtx-4060": "reject", "l4": "admit"}),
        (30, {"rtx-3060": "reject", "rtx-4060": "reject", "l4": "reject"}),
    ],
)
def test_the_strip_separates_what_may_fit_from_what_does_not(
    size_gib: float, want: dict[str, str]
) -> None:
    """Three verdicts, not two; all by the one size that the headline states."""
    record = _record(size_bytes=int(size_gib * GIB))
    assert record.estimate is not None
    needs = record.estimate.needs_bytes

    cells = [cell for cell in strip_of(record, None) if cell.decision is not None]

    found = {cell.name: str(cell.decision) for cell in cells}
    assert found == found | want
    assert {cell.needs_bytes for cell in cells} == {needs}
    (asked,) = [cell for cell in cells if cell.is_asked]
    assert asked.why == record.estimate.explanation.headline


def test_a_trace_is_judged_on_every_gpu() -> None:
    """It is the same on all of them: only the capacity is another."""
    trace = Work(kind=WorkKind.ESTIMATE, trace="0" * 64, gpu=GpuRequest(name="t4"))

    assert {cell.decision for cell in strip_of(_record(trace), None)} == {Decision.ADMIT}


def test_what_was_measured_is_admitted_where_it_fits_as_it_was() -> None:
    """Not where only its replay fits: asked about that GPU, the answer is a doubt."""
    trace = Work(kind=WorkKind.ESTIMATE, trace="0" * 64, gpu=GpuRequest(name="t4"))
    record = _record(trace, engine="measured", fits_on=["t4", "l4"])

    decisions = {cell.name: cell.decision for cell in strip_of(record, None)}

    assert (decisions["t4"], decisions["l4"]) == (Decision.ADMIT, Decision.ADMIT)
    assert decisions["rtx-4060"] is Decision.UNCERTAIN


RECORDING = RecordingSummary(
    command="python train.py", gpu="rtx-3060", num_steps=4, batches=[], memgate="1.0"
)
TIMELINE = Work(kind=WorkKind.ESTIMATE, trace="0" * 64, gpu=GpuRequest(name="rtx-3060"))


def test_what_was_recorded_is_admitted_on_gpus_of_its_kind() -> None:
    """Elsewhere it is in doubt, or rejected; the asked one has its own answer."""
    record = _record(TIMELINE, 10 * GIB, recording=RECORDING, fits_on=["rtx-3060"])

    cells = {cell.name: cell for cell in strip_of(record, None)}

    assert cells["rtx-3060"].decision is Decision.ADMIT
    assert cells["a100-80"].decision is Decision.UNCERTAIN
    assert "recorded for rtx-3060; ask about a100-80 to see" in cells["a100-80"].why
    assert cells["rtx-4060"].decision is Decision.REJECT


def test_a_recording_in_doubt_is_admitted_nowhere() -> None:
    """Not even on the GPU that it was recorded for, asked about another."""
    work = TIMELINE.model_copy(update={"gpu": GpuRequest(name="a100-80")})
    doubt = Reason(code="EVALUATION_NOT_REACHED", message="no evaluation was seen")
    record = _record(work, doubts=(doubt,), recording=RECORDING, fits_on=[])

    (own,) = [cell for cell in strip_of(record, None) if cell.name == "rtx-3060"]

    assert own.decision is Decision.UNCERTAIN
    assert own.why.endswith("but the estimate is in doubt; no evaluation was seen")


@pytest.mark.parametrize(
    ("divided", "want"),
    [
        ({}, "gpt2, batch 2"),
        ({"distributed": {"strategy": "fsdp2", "world_size": 8}}, "gpt2, batch 2, fsdp2 on 8 GPUs"),
        ({"distributed": {"strategy": "ddp", "world_size": 1}}, "gpt2, batch 2"),
    ],
)
def test_a_job_on_several_gpus_is_named_with_them(divided: dict[str, Any], want: str) -> None:
    """The same model on one GPU is another job."""
    spec = {
        "model": {"source": "transformers", "name": "gpt2"},
        "input": {"sequence_length": 8},
        "batch_size": 2,
    }
    job = JobSpec.model_validate(spec | divided)
    work = Work(kind=WorkKind.ESTIMATE, job=job, gpu=GpuRequest(name="a100-80"))

    assert describe_job(_record(work)) == want


def test_a_recording_is_named_by_its_command() -> None:
    """A long one is cut; without one, and before the answer, by the digest of the file."""
    unanswered = _record(TIMELINE).model_copy(update={"result": None})
    long = RECORDING.model_copy(update={"command": "x" * 100})
    nameless = RECORDING.model_copy(update={"command": ""})

    assert describe_job(_record(TIMELINE, recording=RECORDING)) == "python train.py"
    assert describe_job(_record(TIMELINE, recording=long)) == "x" * 77 + "..."
    assert describe_job(_record(TIMELINE, recording=nameless)) == "timeline 00000000"
    assert describe_job(unanswered) == "trace 00000000"


def test_a_recording_is_proposed_every_gpu() -> None:
    """And what any upload is; both are replays."""
    record = _record(TIMELINE, recording=RECORDING, timings_ms={"total": 1000})
    assert record.estimate is not None

    proposals = propose(record)

    assert [proposal.name for proposal in proposals] == ["allocator", "gpu"]
    assert (proposals[1].work.kind, proposals[1].work.trace) == (WorkKind.FIT, "0" * 64)
    assert describe_run(record.estimate).startswith("a replay of the timeline, ")


def test_what_is_in_doubt_is_admitted_nowhere() -> None:
    """It would fit by its size, and yet it was not admitted: nor is it on the next GPU."""
    doubt = Reason(code="UNPAIRED", message="some frees have no block")
    record = _record(doubts=(doubt,))

    cells = strip_of(record, None)

    assert {cell.decision for cell in cells} == {Decision.UNCERTAIN, None}
    (other,) = [cell for cell in cells if cell.name == "l4"]
    assert doubt.message in other.why


def test_ranks_that_communicate_are_admitted_on_no_part_of_a_gpu() -> None:
    """NCCL does not support MIG: the strip says so, and whole GPUs are as they were."""
    nccl = CommunicationMemory(low_bytes=0, expected_bytes=GIB, high_bytes=GIB)
    record = _record(communication=nccl, fits_on=["a100-80"])

    cells = {cell.name: cell for cell in strip_of(record, None) if cell.decision is not None}

    parts = [cell for name, cell in cells.items() if CATALOGUE[name].is_part]
    assert parts
    assert Decision.ADMIT not in {cell.decision for cell in parts}
    assert "does not support MIG" in cells["a100-80-7g.80gb"].why
    assert cells["a100-80"].decision is Decision.ADMIT


def test_what_is_proposed_changes_one_thing_each() -> None:
    """Each a question of its own; none is the question itself."""
    record = _record()

    proposals = propose(record)

    names = [proposal.name for proposal in proposals]
    assert names == ["batch", "precision", "checkpointing", "optimizer", "allocator", "gpu"]
    assert len({proposal.work.id() for proposal in proposals} | {record.work.id()}) == 7


def test_nothing_is_proposed_that_is_so_already() -> None:
    """Mixed precision, checkpointing, an optimizer without state, expandable segments."""
    done = JOB | {
        "precision": "bf16",
        "gradient_checkpointing": True,
        "optimizer": {"name": "SGD"},
        "allocator": "expandable_segments:True",
    }
    work = _record().work.model_copy(update={"job": JobSpec.model_validate(done)})

    assert [proposal.name for proposal in propose(_record(work))] == ["batch", "gpu"]


def test_an_old_gpu_is_proposed_the_precision_that_it_has() -> None:
    """There is no bfloat16 before Ampere."""
    work = _record().work.model_copy(update={"gpu": GpuRequest(name="t4")})

    (title,) = [one.title for one in propose(_record(work)) if one.name == "precision"]

    assert title == "Mixed precision (amp-fp16)"


def test_of_a_trace_only_the_allocator_can_be_another() -> None:
    """And of a question about all GPUs nothing."""
    trace = Work(kind=WorkKind.ESTIMATE, trace="0" * 64, gpu=GpuRequest(name="t4"))
    fit = Work(kind=WorkKind.FIT, job=JobSpec.model_validate(JOB))

    assert [one.name for one in propose(_record(trace))] == ["allocator"]
    assert propose(_record(fit)) == []


@pytest.mark.parametrize(
    ("said", "want"),
    [
        ({"runtime": "torch-2.14", "timings_ms": {"run": 400, "total": 900}}, "a new run, 900 ms"),
        ({"runtime": "torch-2.14", "timings_ms": {"run": 0, "total": 1200}}, "a replay, 1.2 s"),
        ({"runtime": "", "timings_ms": {"run": 30, "total": 80}}, "the trace, 80 ms"),
    ],
)
def test_an_answer_says_whether_it_needed_a_run(said: dict[str, Any], want: str) -> None:
    """A run takes time; a replay takes none of it."""
    assert describe_run(make_estimate(GIB).model_copy(update=said)) == want


def test_what_a_page_prints_is_escaped() -> None:
    """Whatever a model is called."""
    hostile = HistoryEntry(
        job="0" * 32,
        at=0.0,
        kind="estimate",
        outcome=JobOutcome.ADMIT,
        subject="<script>alert(1)</script>",
        message='"><img src=x onerror=alert(1)>',
    )

    html = render_part("parts/decisions.html", decisions=[hostile])

    assert "<script>" not in html
    assert "<img" not in html
    assert "&lt;script&gt;" in html


def test_figures_are_written_for_people() -> None:
    """Below nothing, nothing, and long times."""
    assert write_size(-3 * GIB) == "-3.00 GiB"
    assert (write_size(5120 * GIB), write_size(3 << 50)) == ("5.00 TiB", "3.00 PiB")
    assert (write_size(None), write_seconds(None)) == ("-", "-")
    assert [write_seconds(s) for s in (0.0123, 1.23, 240, 90_000)] == [
        "12 ms", "1.2 s", "4 min", "25 h",
    ]  # fmt: skip
