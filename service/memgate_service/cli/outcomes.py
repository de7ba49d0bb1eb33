"""What engines, and the published estimators, said about measured runs -> figures and files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from memgate.accuracy import (
    PUBLISHED,
    AccuracySummary,
    MeasuredRun,
    Prediction,
    published_prediction,
    summarize,
)
from memgate.errors import InputError
from memgate.evaluation.report import Evaluated, write_report
from memgate_service.cli.accuracy_plots import plot_accuracy
from memgate_service.cli.evaluation_plots import plot_evaluation

#: estimators as their authors write them
SPELLED = {"xmem": "xMem", "dnnmem": "DNNMem", "schedtune": "SchedTune", "llmem": "LLMem"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcomes:
    """What was said about measured runs."""

    runtime: str
    rows: list[MeasuredRun]
    #: by engine, for each row: a prediction, or why there is none
    said: dict[str, list[Prediction | str]]

    @property
    def failed(self) -> dict[str, str]:
        """Why an engine could not run a row, by the row; with the engine if there are several."""
        return {
            row.run if len(self.said) == 1 else f"{row.run}, {engine}": one
            for engine, said in self.said.items()
            for row, one in zip(self.rows, said, strict=True)
            if isinstance(one, str)
        }

    def made(self, engine: str) -> list[tuple[MeasuredRun, Prediction]]:
        """Return an engine's predictions with their rows."""
        pairs = zip(self.rows, self.said[engine], strict=True)
        return [(row, said) for row, said in pairs if isinstance(said, Prediction)]

    def published(self, name: str) -> list[Prediction]:
        """Return what a published estimator said of each row."""
        return [published_prediction(row, name) for row in self.rows]

    def summaries(self) -> dict[str, AccuracySummary]:
        """Return the figures of engines, and of published estimators that are not among them."""
        ours = {}
        for engine in self.said:
            made = self.made(engine)
            rows, said = [row for row, _ in made], [said for _, said in made]
            ours[engine] = summarize(rows, said, is_published=False)
        return ours | {name: self._published(name) for name in PUBLISHED if name not in ours}

    def repeated(self) -> dict[str, AccuracySummary]:
        """Return the published figures of estimators that are among the engines, too."""
        return {name: self._published(name) for name in PUBLISHED if name in self.said}

    def _published(self, name: str) -> AccuracySummary:
        return summarize(self.rows, self.published(name), is_published=True)

    def to_document(self) -> dict[str, object]:
        """Return the figures as JSON has them, and beside an engine's the published ones."""
        found: dict[str, object] = {
            name: summary.to_document() for name, summary in self.summaries().items()
        }
        for name, published in self.repeated().items():
            found[name] = {
                **self.summaries()[name].to_document(),
                "published": published.to_document(),
            }
        return found | {"runtime": self.runtime, "failed": self.failed}

    def evaluated(self) -> list[Evaluated]:
        """Return all estimators as the evaluation wants them, ours first."""
        ours = []
        for engine in self.said:
            made = self.made(engine)
            label = f"{SPELLED[engine]}, ours" if engine in SPELLED else engine
            ours.append(Evaluated(engine, label, [row for row, _ in made], [s for _, s in made]))
        published = [
            Evaluated(name, SPELLED[name], self.rows, self.published(name), is_published=True)
            for name in PUBLISHED
        ]
        return [*ours, *published]


def draw(outcomes: Outcomes, directory: Path) -> list[Path]:
    """Draw predicted against measured, and the errors of all.

    Raises:
        InputError: if there is nothing to draw, or a file cannot be written.
    """
    ours = {f"{name}, {outcomes.runtime}": outcomes.made(name) for name in outcomes.said}
    published = {
        SPELLED[name]: list(zip(outcomes.rows, outcomes.published(name), strict=True))
        for name in PUBLISHED
    }
    compared = (next(iter(ours)), SPELLED["xmem"])
    return plot_accuracy(ours | published, directory, compared=compared)


def write_evaluation(outcomes: Outcomes, directory: Path) -> list[Path]:
    """Write the paper's evaluation: ``report.md`` and its pictures.

    Raises:
        InputError: if there is nothing to evaluate, or a file cannot be written.
    """
    evaluated = outcomes.evaluated()
    if not any(one.score.rows for one in evaluated):
        raise InputError("--report: every row ran out of memory or has no prediction")
    pictures = [*draw(outcomes, directory), *plot_evaluation(evaluated, directory)]
    path = directory / "report.md"
    text = write_report(evaluated, [one.name for one in pictures], outcomes.runtime)
    try:
        path.write_text(text)
    except OSError as error:
        raise InputError(f"--report {path}: {error.strerror or error}") from None
    return [path, *pictures]
