"""The breadth bench on figures that were never measured: it runs, and says what is wrong."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from memgate.errors import InputError
from memgate.jobspec import ZeroGrad
from memgate.units import MIB
from memgate_worker.runtimes.runtime import find_runtime, read_runtimes
from tests.bench import breadth

HEADER = "model,batch_size,max_gpu_memory_mib\n"


@pytest.fixture
def figures(tmp_path: Path) -> Path:
    """A file of the form that the bench reads; the numbers are invented."""
    path = tmp_path / "figures.csv"
    rows = ("test_resnet,8,1800", "test_resnet,64,9000", "test_vit,8,1750", "no_such_model,8,1900")
    path.write_text(HEADER + "\n".join(rows) + "\n")
    return path


def test_figures_are_read_in_bytes(figures: Path) -> None:
    """A row a run."""
    measured = breadth.read_measured(figures)

    assert len(measured) == 4
    assert (measured[0].model, measured[0].batch_size) == ("test_resnet", 8)
    assert measured[0].bytes == 1800 * MIB


def test_a_stranger_is_told_what_to_bring(tmp_path: Path) -> None:
    """The figures are no part of the repository."""
    with pytest.raises(InputError, match=r"make breadth TIMM=path. They are no part of the repos"):
        breadth.read_measured(tmp_path / "timm_a100.csv")


@pytest.mark.parametrize("text", ["", HEADER, "model,batch\nx,1\n"])
def test_another_file_is_refused(text: str, tmp_path: Path) -> None:
    """The columns are named."""
    path = tmp_path / "other.csv"
    path.write_text(text)

    with pytest.raises(InputError, match="needs rows with the columns model, batch_size, max_gpu"):
        breadth.read_measured(path)


def test_the_job_is_timms_own() -> None:
    """What timm's training script does unless told otherwise."""
    job = breadth.training_job("resnet50", 8)

    assert job.input.is_empty
    assert job.zero_grad is ZeroGrad.AFTER_STEP
    assert job.optimizer.kwargs["nesterov"] is True
    assert job.cudnn_benchmark


@pytest.mark.skipif(
    not read_runtimes()["torch-2.14"].is_installed, reason="runtime torch-2.14 is not built"
)
def test_models_are_traced_sorted_and_listed(
    figures: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Figures, odd rows, and models that do not trace with the reason."""
    rows_out = tmp_path / "out" / "rows.csv"

    breadth.main([str(figures), "--rows", str(rows_out)])

    out = capsys.readouterr().out
    assert "models that trace" in out
    assert "66.7%" in out
    assert "workspaces of the benchmark (1 rows):\n  test_resnet batch 64: measured 9,000" in out
    assert (
        "no_such_model does not trace: model.name is 'no_such_model': timm has no such model" in out
    )
    written = list(csv.DictReader(rows_out.read_text().splitlines()))
    assert [row["kind"] for row in written] == ["lived", "workspaces of the benchmark", "lived"]


@pytest.mark.skipif(
    not read_runtimes()["torch-2.14"].is_installed, reason="runtime torch-2.14 is not built"
)
def test_a_card_too_small_is_noticed() -> None:
    """A job beyond the card is predicted to run out of memory."""
    huge = breadth.Measured(model="vgg19", batch_size=4096, bytes=1)

    (said,) = breadth.trace_all([huge], find_runtime(None))

    assert isinstance(said, breadth.Traced)
    assert said.runs_out
    assert said.num_parameters == 143_667_240
