"""Pictures of predicted against measured."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import pytest

from memgate.accuracy import MeasuredRun, Prediction, published_prediction, read_measured_runs
from memgate.errors import InputError, MissingExtraError
from memgate_service.cli.accuracy_plots import plot_accuracy, prepare_pictures
from tests.conftest import DATA

PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def runs() -> list[MeasuredRun]:
    """The sample of measured runs."""
    rows = list(csv.DictReader((DATA / "peaks_sample.csv").read_text().splitlines()))
    return read_measured_runs(rows, [], json.loads((DATA / "models.json").read_text()))


def _says(size_bytes: float | None) -> Prediction:
    return Prediction(bytes=size_bytes, runs_out=None, seconds=None, capped=())


def test_two_pictures_are_drawn(runs: list[MeasuredRun], tmp_path: Path) -> None:
    """A scatter of the compared, and the errors of all."""
    outcomes = {
        "ours": [(run, _says(run.measured_bytes * 1.01)) for run in runs],
        "xmem": [(run, published_prediction(run, "xmem")) for run in runs],
        "llmem": [(run, published_prediction(run, "llmem")) for run in runs],
    }

    paths = plot_accuracy(outcomes, tmp_path, compared=("ours", "xmem"))

    assert paths == [tmp_path / "scatter.png", tmp_path / "errors.png"]
    assert all(path.read_bytes().startswith(PNG) for path in paths)
    assert all(path.stat().st_size > 10_000 for path in paths)


def test_an_estimator_without_predictions_has_an_empty_panel(
    runs: list[MeasuredRun], tmp_path: Path
) -> None:
    """It supports none of the jobs: nothing is drawn, and nothing fails."""
    outcomes = {
        "ours": [(run, _says(run.measured_bytes)) for run in runs],
        "xmem": [(run, _says(None)) for run in runs],
    }

    paths = plot_accuracy(outcomes, tmp_path, compared=("ours", "xmem"))

    assert all(path.read_bytes().startswith(PNG) for path in paths)


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    """Rather than a picture of nothing."""
    with pytest.raises(InputError, match="every row ran out of memory or has no prediction"):
        plot_accuracy({"ours": []}, tmp_path, compared=("ours",))


def test_a_directory_is_made(tmp_path: Path) -> None:
    """With those above it."""
    prepare_pictures(tmp_path / "a" / "b")

    assert (tmp_path / "a" / "b").is_dir()


def test_a_file_in_the_way_is_said_before_anything_runs(tmp_path: Path) -> None:
    """Pictures cannot go into a file."""
    (tmp_path / "taken").touch()

    with pytest.raises(InputError, match=r"--plot .*taken: File exists"):
        prepare_pictures(tmp_path / "taken")


def test_without_matplotlib_it_says_so_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The extra to install is named."""
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)

    with pytest.raises(MissingExtraError, match=r"pip install 'memgate\[plot\]'"):
        prepare_pictures(tmp_path)
