"""Pictures of memory over time. What they look like is judged by eye; what they name, here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from memgate.allocator.config import AllocatorConfig
from memgate.allocator.replay import replay
from memgate.context import USUAL_CONTEXT_BYTES
from memgate.errors import InputError, MissingExtraError
from memgate.gpus import GpuSpec, GpuTarget
from memgate.timeline import Alloc, Category, Free, Label, Phase, PhaseStart, Timeline
from memgate_service.cli.plots import plot_replay, plot_timeline, prepare_picture
from tests.builders import mib

TIMELINE = Timeline(
    events=(Alloc(0, mib(30)), Alloc(1, mib(50)), Free(1), Alloc(2, mib(10))),
    labels=(
        Label(Category.PARAMETERS, ""),
        Label(Category.OPTIMIZER_STATE, ""),
        Label(Category.GRADIENTS, ""),
    ),
    phases=(PhaseStart(0, Phase.BETWEEN), PhaseStart(1, Phase.OPTIMIZER)),
)


def _draw(tmp_path: Path, memory_bytes: int, timeline: Timeline = TIMELINE) -> str:
    """Draw on a GPU that leaves this much, and return the words of the picture."""
    gpu = GpuSpec(
        name="gpu-1",
        product="",
        memory_bytes=memory_bytes + USUAL_CONTEXT_BYTES,
        compute_capability=(8, 0),
        multiprocessors=1,
        library_bytes=0,
    )
    path = tmp_path / "picture.svg"
    target = GpuTarget(gpu=gpu)
    plot_timeline(timeline, AllocatorConfig(), target, title="job", path=path)
    return "\n".join(line for line in path.read_text().splitlines() if "<!--" in line)


def test_what_is_drawn_is_named(tmp_path: Path) -> None:
    """Each category that occurs, with what it held at the peak, the phases, the job, the GPU."""
    said = _draw(tmp_path, mib(8000))

    for words in ("parameters: 30.00 MiB", "optimizer state: 50.00 MiB", "gradients: 0 bytes"):
        assert words in said
    assert "activations" not in said
    assert "reserved, peak 80.00 MiB" in said
    assert "job, on gpu-1" in said
    assert all(f"<!-- {phase} -->" in said for phase in ("between", "optimizer"))
    assert "capacity" not in said


def test_a_capacity_that_is_near_is_shown(tmp_path: Path) -> None:
    """What is left beside the context is what the curves can reach."""
    assert "capacity: 100.00 MiB" in _draw(tmp_path, mib(100))


def test_a_job_that_dies_is_shown_whole(tmp_path: Path) -> None:
    """As on a GPU that has enough, and the picture says so."""
    said = _draw(tmp_path, mib(60))

    assert "job, on gpu-1, which has too little memory: shown as if it had enough" in said
    assert "reserved, peak 80.00 MiB" in said


def test_a_phase_that_is_too_short_for_its_name_is_in_the_legend(tmp_path: Path) -> None:
    """Once, however often it comes."""
    events = tuple(event for _ in range(300) for event in (Alloc(0, 512), Free(0)))
    starts = ((0, "forward"), (300, "optimizer"), (301, "forward"), (500, "optimizer"))
    timeline = Timeline(
        events=events,
        labels=(Label(Category.BATCH, ""),),
        phases=(
            *(PhaseStart(at, Phase(name)) for at, name in starts),
            PhaseStart(501, Phase.BETWEEN),
        ),
    )

    assert _draw(tmp_path, mib(100), timeline).count("<!-- optimizer -->") == 1


@pytest.mark.parametrize("events", [(), TIMELINE.events], ids=["nothing", "something"])
def test_without_labels_there_is_one_area(tmp_path: Path, events: tuple[Alloc, ...]) -> None:
    """Recordings have none; one of nothing is a picture, too."""
    path = tmp_path / "picture.svg"

    run = replay(Timeline(events=events), AllocatorConfig(), mib(900))
    plot_replay(run, title="run", capacity_bytes=mib(90), path=path)

    assert "allocated, peak" in path.read_text()


@pytest.mark.parametrize(
    ("name", "want_message"),
    [
        ("a.xyz", r"a\.xyz: Format 'xyz' is not supported"),
        ("no/a.png", r"no/a\.png: there is no such folder"),
    ],
)
def test_a_bad_place_is_told_before_anything_runs(
    tmp_path: Path, name: str, want_message: str
) -> None:
    """A job may take minutes."""
    with pytest.raises(InputError, match=want_message):
        prepare_picture(tmp_path / name)


def test_a_name_without_an_ending_gets_one(tmp_path: Path) -> None:
    """PNG is what people mean."""
    assert prepare_picture(tmp_path / "a") == tmp_path / "a.png"


def test_without_matplotlib_it_says_so_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extra to install is named."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    with pytest.raises(MissingExtraError, match=r"pip install 'memgate\[plot\]'"):
        prepare_picture(tmp_path / "a.png")
