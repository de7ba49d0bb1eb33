"""Measured runs, predictions -> two pictures: predicted against measured, and the errors.

Rows that ran out of memory and jobs that an estimator does not support are in neither.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from memgate.accuracy import MeasuredRun, Prediction
from memgate.errors import InputError
from memgate.jobspec import ModelSource
from memgate.units import GIB
from memgate_service.cli.plots import make_figure, save_figure

Outcomes = Sequence[tuple[MeasuredRun, Prediction]]

#: Okabe and Ito's colours: the colour-blind can tell them apart too
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_FAMILIES = ((False, "o", "images"), (True, "^", "language"))
_TICKS_GIB = (0.25, 0.5, 1, 2, 4, 8, 16, 32, 64, 128)
#: what both pictures show as close
_BAND = 0.1
_BAND_NAME = f"within {100 * _BAND:.0f} %"


def prepare_pictures(directory: Path, option: str = "--plot") -> None:
    """Make sure that pictures can be drawn, before minutes are spent on what they show.

    Raises:
        InputError: if the directory cannot be made.
        MissingExtraError: if matplotlib is missing.
    """
    make_figure(1, 1)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{option} {directory}: {error.strerror or error}") from None


def plot_accuracy(
    outcomes: Mapping[str, Outcomes], directory: Path, *, compared: Sequence[str]
) -> list[Path]:
    """Draw ``scatter.png`` of the compared estimators and ``errors.png`` of all.

    Args:
        outcomes: what each estimator said about each run, by the name to show.
        directory: where the files go.
        compared: the names that get a panel of the scatter.

    Raises:
        InputError: if there is nothing to draw, or a file cannot be written.
    """
    usable = {name: _usable(pairs) for name, pairs in outcomes.items()}
    usable = {name: pairs for name, pairs in usable.items() if pairs}
    if not usable:
        raise InputError("--plot: every row ran out of memory or has no prediction")
    pictures = {
        directory / "scatter.png": _scatter([(name, usable.get(name, [])) for name in compared]),
        directory / "errors.png": _boxes(usable),
    }
    for path, figure in pictures.items():
        save_figure(figure, path)
    return list(pictures)


def _usable(pairs: Outcomes) -> list[tuple[MeasuredRun, float]]:
    return [(run, said.bytes) for run, said in pairs if said.bytes is not None and not run.ran_out]


def _error(run: MeasuredRun, predicted: float) -> float:
    return (predicted - run.measured_bytes) / run.measured_bytes


def _scatter(panels: Sequence[tuple[str, list[tuple[MeasuredRun, float]]]]) -> Any:
    figure = make_figure(5.2 * len(panels), 6.9)
    all_axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    drawn = [pair for _, pairs in panels for pair in pairs]
    sizes = [size / GIB for run, said in drawn for size in (run.measured_bytes, said)]
    low, high = min(sizes) / 1.3, max(sizes) * 1.3
    gpus = sorted({run.gpu for run, _ in drawn})
    for axes, (name, pairs) in zip(all_axes, panels, strict=True):
        _draw_guides(axes, low, high)
        for is_language, marker, family in _FAMILIES:
            for gpu, colour in zip(gpus, _COLOURS * len(gpus), strict=False):
                chosen = [
                    (run.measured_bytes / GIB, said / GIB)
                    for run, said in pairs
                    if run.gpu == gpu and _is_language(run) == is_language
                ]
                axes.plot(
                    *zip(*chosen, strict=True) if chosen else ([], []),
                    linestyle="none",
                    marker=marker,
                    markersize=5.5,
                    markerfacecolor="none",
                    markeredgewidth=1.1,
                    color=colour,
                    label=f"{gpu.removeprefix('NVIDIA ')}, {family}",
                )
        axes.set_title(_panel_title(name, pairs), loc="left", fontsize=11)
        axes.set_xlabel("measured, GiB")
        _set_log_axes(axes, low, high)
    all_axes[0].set_ylabel("predicted, GiB")
    handles, labels = _with_something_drawn(all_axes)
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def _panel_title(name: str, pairs: list[tuple[MeasuredRun, float]]) -> str:
    if not pairs:
        return f"{name}: no predictions"
    off = median(abs(_error(run, said)) for run, said in pairs)
    return f"{name}\nmedian error {100 * off:.1f} % over {len(pairs)} runs"


def _draw_guides(axes: Any, low: float, high: float) -> None:
    ends = [low, high]
    axes.fill_between(
        ends,
        [end * (1 - _BAND) for end in ends],
        [end * (1 + _BAND) for end in ends],
        color="#999999",
        alpha=0.18,
        linewidth=0,
        label=_BAND_NAME,
    )
    for factor in (1 - _BAND, 1 + _BAND):
        axes.plot(ends, [end * factor for end in ends], color="#777777", linestyle="--", lw=0.8)
    axes.plot(ends, ends, color="#444444", linewidth=0.9, label="predicted = measured")


def _set_log_axes(axes: Any, low: float, high: float) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(low, high)
    axes.set_ylim(low, high)
    axes.set_aspect("equal")
    ticks = [tick for tick in _TICKS_GIB if low <= tick <= high]
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
        axis.set_ticks([], minor=True)
    axes.spines[["top", "right"]].set_visible(False)


def _with_something_drawn(all_axes: Sequence[Any]) -> tuple[list[Any], list[str]]:
    """Collect the legend: what has points in some panel, and the guides, once each."""
    kept: dict[str, Any] = {}
    for axes in all_axes:
        for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
            if not hasattr(handle, "get_xdata") or len(handle.get_xdata()):
                kept.setdefault(label, handle)
    return list(kept.values()), list(kept)


def _is_language(run: MeasuredRun) -> bool:
    return run.spec.model.source is ModelSource.TRANSFORMERS


def _boxes(usable: Mapping[str, list[tuple[MeasuredRun, float]]]) -> Any:
    figure = make_figure(9, 0.75 * len(usable) + 1.6)
    axes = figure.add_subplot()
    errors = [[100 * _error(run, said) for run, said in pairs] for pairs in usable.values()]
    axes.axvspan(-100 * _BAND, 100 * _BAND, color="#999999", alpha=0.18, linewidth=0)
    axes.axvline(0, color="#444444", linewidth=0.9)
    boxes = axes.boxplot(
        errors,
        orientation="horizontal",
        whis=(5, 95),
        widths=0.55,
        patch_artist=True,
        medianprops={"color": "black", "linewidth": 1.6},
        flierprops={"marker": "o", "markersize": 3, "markeredgecolor": "#555555"},
    )
    for number, box in enumerate(boxes["boxes"]):
        box.set_facecolor(_COLOURS[0] if number == 0 else "#BBBBBB")
        box.set_alpha(0.75)
    labels = [f"{name}\n{len(pairs)} runs" for name, pairs in usable.items()]
    axes.set_yticks(range(1, len(labels) + 1), labels=labels)
    axes.tick_params(axis="y", length=0)
    axes.invert_yaxis()
    axes.set_xlabel("error, % of what was measured (below 0: too little was predicted)")
    axes.set_title(
        f"box: half of the runs; whiskers: 90 %; grey: {_BAND_NAME}", loc="left", fontsize=10
    )
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    return figure
