"""The pictures of the xMem paper's evaluation."""

from __future__ import annotations

from pathlib import Path

import pytest

from memgate.accuracy import published_prediction
from memgate.errors import InputError
from memgate.evaluation.report import Evaluated
from memgate_service.cli.evaluation_plots import plot_evaluation
from memgate_service.cli.outcomes import Outcomes, write_evaluation
from tests.unit.memgate.evaluation.runs import make_run

RUNS = [
    make_run(model=model, ground_bytes=ground, xmem_bytes="550", xmem_2nd_oom="false")
    for model in ("VGG16", "owner/gpt2")
    for ground in ("400", "500", "520")
]


def test_each_picture_is_drawn_the_same_every_time(tmp_path: Path) -> None:
    """Five of them, byte for byte, for what changes in a report has to mean something."""
    said = [published_prediction(run, "xmem") for run in RUNS]
    evaluated = [Evaluated("xmem", "xMem", RUNS, said, is_published=True)]
    drawn = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        drawn.append(plot_evaluation(evaluated, tmp_path / name))

    assert len(drawn[0]) == 5
    for one, two in zip(*drawn, strict=True):
        assert one.name == two.name
        assert one.read_bytes() == two.read_bytes()
        assert one.stat().st_size > 5_000


def test_the_report_names_its_pictures(tmp_path: Path) -> None:
    """All files are in one folder, so the links are names."""
    rows = RUNS
    outcomes = Outcomes(runtime="torch-2.6", rows=rows, said={"phantom": ["no"] * len(rows)})

    report, *pictures = write_evaluation(outcomes, tmp_path)

    text = report.read_text()
    assert len(pictures) == 7
    assert all(f"]({path.name})" in text and path.exists() for path in pictures)


def test_nothing_to_evaluate_is_said(tmp_path: Path) -> None:
    """Rather than empty tables."""
    row = make_run(real_oom="true")
    outcomes = Outcomes(runtime="torch-2.6", rows=[row], said={"phantom": ["no"]})

    with pytest.raises(InputError, match="--report: every row ran out of memory"):
        write_evaluation(outcomes, tmp_path)


def test_a_report_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    """The file is named."""
    (tmp_path / "report.md").mkdir()
    outcomes = Outcomes(runtime="torch-2.6", rows=RUNS, said={"phantom": ["no"] * len(RUNS)})

    with pytest.raises(InputError, match=r"--report .*report\.md: "):
        write_evaluation(outcomes, tmp_path)
