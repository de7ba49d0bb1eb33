"""What estimators said about measured runs -> the pictures of the xMem paper's evaluation.

Errors by model and by optimizer, the four quadrants, the distribution of performance scores, and
the memory conserved. The figures are computed in ``memgate.evaluation``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from memgate.accuracy import MeasuredRun
from memgate.evaluation.equations import QUADRANT, list_scores
from memgate.evaluation.report import Evaluated, combination_of, model_of, optimizer_of
from memgate_service.cli.plots import make_figure, save_figure

#: Okabe and Ito's colours, then greys: the colour-blind can tell the first seven apart
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_GREYS = ("#444444", "#666666", "#888888", "#AAAAAA", "#BBBBBB", "#CCCCCC", "#DDDDDD")
_MARKERS = "o^sDvP*X<>dph8"
#: errors beyond it are drawn at the edge
_MOST_PERCENT = 150


def plot_evaluation(evaluated: Sequence[Evaluated], directory: Path) -> list[Path]:
    """Draw all pictures into a directory that exists, and return their paths.

    Raises:
        InputError: if a file cannot be written.
        MissingExtraError: if matplotlib is missing.
    """
    drawn = [one for one in evaluated if one.score.rows]
    pictures = {
        "errors-by-model": _boxes(drawn, model_of),
        "errors-by-optimizer": _boxes(drawn, optimizer_of),
        "quadrants": _quadrants(drawn),
        "scores": _scores(drawn),
        "memory-conserved": _conserved(drawn),
    }
    paths = [directory / f"{name}.png" for name in pictures]
    for path, figure in zip(paths, pictures.values(), strict=True):
        save_figure(figure, path)
    return paths


def _styles(evaluated: Sequence[Evaluated]) -> list[tuple[Evaluated, str, str]]:
    return list(zip(evaluated, _COLOURS + _GREYS, _MARKERS, strict=False))


def _boxes(evaluated: Sequence[Evaluated], key: Callable[[MeasuredRun], str]) -> Any:
    groups = sorted({key(trial.run) for one in evaluated for trial in one.trials})
    figure = make_figure(11, 1.1 * len(evaluated) + 1.6)
    all_axes = figure.subplots(len(evaluated), 1, sharex=True, squeeze=False)[:, 0]
    for (one, colour, _), axes in zip(_styles(evaluated), all_axes, strict=True):
        errors = [
            [
                min(100 * trial.error, _MOST_PERCENT)
                for trial in one.trials
                if key(trial.run) == group and trial.error is not None
            ]
            for group in groups
        ]
        boxes = axes.boxplot(
            errors,
            widths=0.6,
            whis=(5, 95),
            patch_artist=True,
            medianprops={"color": "black", "linewidth": 1.4},
            flierprops={"marker": "o", "markersize": 2.5, "markeredgecolor": "#555555"},
        )
        for box in boxes["boxes"]:
            box.set_facecolor(colour)
            box.set_alpha(0.7)
        axes.set_title(f"{one.label}: error, % of the measured peak", loc="left", fontsize=9)
        _clear(axes)
    all_axes[-1].set_xticks(range(1, len(groups) + 1), labels=groups, rotation=35, ha="right")
    return figure


def _quadrants(evaluated: Sequence[Evaluated]) -> Any:
    figure = make_figure(7.5, 6.8)
    axes = figure.add_subplot()
    for one, colour, marker in _styles(evaluated):
        scores = one.by(model_of).values()
        points = [
            (100 * score.second_failure, min(100 * error, _MOST_PERCENT))
            for score in scores
            if score.second_failure is not None
            and (error := score.second_median_error or score.median_error) is not None
        ]
        axes.plot(
            *zip(*points, strict=True) if points else ([], []),
            linestyle="none",
            marker=marker,
            markersize=6,
            markerfacecolor="none",
            color=colour,
            label=one.label,
        )
    axes.axvline(100 * QUADRANT, color="#444444", linewidth=0.8, linestyle="--")
    axes.axhline(100 * QUADRANT, color="#444444", linewidth=0.8, linestyle="--")
    places = {"optimal": (0.01, 0.01), "underestimation": (0.75, 0.01)}
    places |= {"overestimation": (0.01, 0.96), "worst": (0.9, 0.96)}
    for name, (x, y) in places.items():
        axes.text(x, y, name, transform=axes.transAxes, fontsize=9, color="#555555")
    axes.set_xlim(-3, 103)
    axes.set_ylim(bottom=-1)
    axes.set_xlabel("probability of estimation failure, second validation, %")
    axes.set_ylabel("median error, %")
    axes.set_title("each mark is a model", loc="left", fontsize=10)
    _name(figure, axes)
    _clear(axes)
    return figure


def _scores(evaluated: Sequence[Evaluated]) -> Any:
    figure = make_figure(8, 5.6)
    axes = figure.add_subplot()
    for one, colour, _ in _styles(evaluated):
        scores = one.by(combination_of).values()
        for second, line in ((False, "--"), (True, "-")):
            steps = list_scores(scores, second=second)
            shares = [(place + 1) / len(steps) for place in range(len(steps))]
            axes.step(
                [0.0, *steps],
                [0.0, *shares],
                where="post",
                color=colour,
                linestyle=line,
                linewidth=1.4,
                label=one.label if second else None,
            )
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.01)
    axes.set_xlabel("performance score (lower is better); dashed: first validation, line: second")
    axes.set_ylabel("share of scores that are no larger")
    _name(figure, axes)
    _clear(axes)
    return figure


def _conserved(evaluated: Sequence[Evaluated]) -> Any:
    by_model = [one.by(model_of) for one in evaluated]
    models = sorted({model for by in by_model for model in by})
    figure = make_figure(11, 5.2)
    axes = figure.add_subplot()
    width = 0.84 / len(evaluated)
    for place, ((one, colour, _), by) in enumerate(zip(_styles(evaluated), by_model, strict=True)):
        heights = [_saved(by, model) for model in models]
        middles = [at - 0.42 + (place + 0.5) * width for at in range(len(models))]
        axes.bar(middles, heights, width=width, color=colour, label=one.label)
    axes.axhline(0, color="#444444", linewidth=0.8)
    axes.set_xticks(range(len(models)), labels=models, rotation=35, ha="right")
    axes.set_ylabel("GB conserved per estimate")
    _name(figure, axes)
    _clear(axes)
    return figure


def _saved(by: Mapping[str, Any], model: str) -> float:
    saved = by[model].saved_bytes if model in by else None
    return 0.0 if saved is None else saved / 1e9


def _name(figure: Any, axes: Any) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False, fontsize=8.5)


def _clear(axes: Any) -> None:
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
