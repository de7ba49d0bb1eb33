"""Replay -> a picture: what was reserved and allocated over time, by category and phase.

What is shown is computed in ``memgate.stacks``. matplotlib is imported when a picture is drawn and
not before: nothing else needs it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memgate.allocator.config import AllocatorConfig
from memgate.allocator.replay import Replay, replay
from memgate.breakdown import find_peak
from memgate.capacity import AMPLE_BYTES
from memgate.errors import InputError, MissingExtraError
from memgate.gpus import GpuTarget
from memgate.stacks import phase_spans, pick_events, stack_categories
from memgate.timeline import Category, Phase, Timeline
from memgate.units import GIB, MIB, format_size
from memgate.verdict import left_for_segments

#: from the bottom up, what stays longest first; Okabe and Ito's colours, lightened: neighbours
#: differ in brightness too, so that they can be told apart in grey and by the colour-blind
_CATEGORIES: Mapping[Category, tuple[str, str]] = {
    Category.PARAMETERS: ("parameters", "#0072B2"),
    Category.OPTIMIZER_STATE: ("optimizer state", "#E69F00"),
    Category.WORKSPACE: ("workspaces", "#666666"),
    Category.GRADIENTS: ("gradients", "#CC79A7"),
    Category.BATCH: ("batch", "#006B4E"),
    Category.ACTIVATIONS: ("activations", "#8FD0F5"),
    Category.TEMPORARY: ("temporary", "#F0E442"),
    Category.OTHER: ("other", "#9A86C2"),
}
_ALLOCATED_COLOUR = "#E69F00"
_RESERVED_COLOUR = "#1a1a1a"
_WARNING_COLOUR = "#C03A00"

#: of the bands behind the curves
_PHASES: Mapping[Phase, str] = {
    Phase.BETWEEN: "#ffffff",
    Phase.FORWARD: "#eef1f4",
    Phase.BACKWARD: "#d9dee4",
    Phase.OPTIMIZER: "#bcc4cd",
}
#: the share of the picture's width that a letter of a band's name takes
_LETTER_SHARE = 0.007

#: more points than the picture has columns would show nothing more
_MAX_POINTS = 4000


def make_figure(width_inches: float, height_inches: float) -> Any:
    """Make an empty figure.

    Raises:
        MissingExtraError: if matplotlib is missing, with the command that installs it.
    """
    try:
        from matplotlib.figure import Figure
    except ModuleNotFoundError as error:
        raise MissingExtraError.of("--plot", error, extra="plot") from None
    return Figure(figsize=(width_inches, height_inches), layout="constrained")


def save_figure(figure: Any, path: Path) -> None:
    """Write a figure into a PNG, SVG or PDF file.

    Raises:
        InputError: if the file cannot be written as asked.
    """
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise InputError(f"--plot {path}: {error}") from None


def name_picture(path: Path) -> Path:
    """Add an extension to a name without one; refuse to overwrite a file."""
    named = path if path.suffix else path.with_suffix(".png")
    if named.exists():
        raise InputError(f"--plot {named}: the file exists; remove it, or give another name")
    return named


def prepare_picture(path: Path) -> Path:
    """Make sure that a picture can be drawn before time is spent on what it shows.

    Returns:
        Where it goes, see ``name_picture``.

    Raises:
        InputError: if there is no such folder or kind of picture, or if the file exists.
        MissingExtraError: if matplotlib is missing.
    """
    path = name_picture(path)
    kinds = make_figure(1, 1).canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in kinds:
        raise InputError(f"--plot {path}: Format {path.suffix[1:]!r} is not supported: use .png")
    if not path.resolve().parent.is_dir():
        raise InputError(f"--plot {path}: there is no such folder")
    return path


def replay_to_show(
    timeline: Timeline, config: AllocatorConfig, target: GpuTarget
) -> tuple[Replay, bool]:
    """Return a job's run on a GPU, and whether that has enough memory; if not, as if it had."""
    run = replay(timeline, config, left_for_segments(target))
    if run.ooms:
        return replay(timeline, config, AMPLE_BYTES), False
    return run, True


def plot_timeline(
    timeline: Timeline, config: AllocatorConfig, target: GpuTarget, *, title: str, path: Path
) -> None:
    """Draw a job on a GPU; where it would run out of memory, as on one that has enough.

    Raises:
        InputError: if the file cannot be written as asked.
        MissingExtraError: if matplotlib is missing.
    """
    run, is_enough = replay_to_show(timeline, config, target)
    notes = [title, f"on {target.gpu.name}"]
    if not is_enough:
        notes.append("which has too little memory: shown as if it had enough")
    plot_replay(
        run,
        title=", ".join(notes),
        capacity_bytes=left_for_segments(target),
        path=path,
        timeline=timeline,
    )


def plot_replay(
    replayed: Replay,
    *,
    title: str,
    capacity_bytes: int,
    path: Path,
    timeline: Timeline | None = None,
) -> None:
    """Draw what was reserved and allocated into a PNG, SVG or PDF file.

    Args:
        replayed: what is drawn.
        title: above it.
        capacity_bytes: shown if the peak comes near it.
        path: of the file; its extension is its kind.
        timeline: what was replayed; its labels and phases are shown, if it has any.

    Raises:
        InputError: if the file cannot be written as asked.
        MissingExtraError: if matplotlib is missing.
    """
    timeline = timeline or Timeline(events=())
    figure = make_figure(12, 5.6)
    axes = figure.add_subplot()
    peak = replayed.peak_reserved_bytes
    divisor, unit = (GIB, "GiB") if peak > GIB else (MIB, "MiB")
    near = capacity_bytes <= 2 * peak
    top = max(peak, capacity_bytes if near else 0, 1) / divisor
    _draw_phases(axes, timeline, replayed.num_events)
    _draw_areas(axes, timeline, replayed, divisor)
    _draw_reserved(axes, replayed, divisor)
    if near:
        label = f"capacity: {format_size(capacity_bytes)}"
        style = {"color": _WARNING_COLOUR, "linestyle": "--", "linewidth": 1.4}
        axes.axhline(capacity_bytes / divisor, label=label, **style)
    _draw_ooms(axes, replayed)
    axes.set_title(title, loc="left", fontsize=11, parse_math=False, pad=10)
    axes.set_xlabel("event (allocation or free)")
    axes.set_ylabel(unit)
    axes.set_xlim(0, max(1, replayed.num_events))
    axes.set_ylim(0, 1.1 * top)
    axes.spines[["top", "right"]].set_visible(False)
    _add_legend(figure, axes, "at the marked peak" if timeline.labels else "")
    save_figure(figure, path)


def _add_legend(figure: Any, axes: Any, title: str) -> None:
    """Name what is drawn, from the top down, as the areas lie."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(
        handles[::-1],
        labels[::-1],
        title=title,
        loc="outside right upper",
        alignment="left",
        frameon=False,
        fontsize=9,
        title_fontsize=9,
    )


def _draw_phases(axes: Any, timeline: Timeline, num_events: int) -> None:
    """Shade each phase and name it above; a phase too narrow for its name goes into the legend."""
    spans = list(phase_spans(timeline, num_events))
    named = {Phase.BETWEEN}  # stays white: no band
    for phase, begin, end in spans:
        if (end - begin) / num_events >= _LETTER_SHARE * len(phase.value):
            named.add(phase)
            axes.text(
                (begin + end) / 2,
                0.985,
                phase.value,
                transform=axes.get_xaxis_transform(),
                horizontalalignment="center",
                verticalalignment="top",
                fontsize=7.5,
                color="#444444",
            )
    for phase, begin, end in spans:
        label = None if phase in named else phase.value
        named.add(phase)
        axes.axvspan(begin, end, facecolor=_PHASES[phase], linewidth=0, zorder=0, label=label)


def _draw_areas(axes: Any, timeline: Timeline, replayed: Replay, divisor: int) -> None:
    """Draw what is allocated: by category if that is known, otherwise as one area."""
    shown = pick_events(replayed.allocated_series, _MAX_POINTS)
    ends = [*shown, replayed.num_events]  # each is as wide as its event
    stacked = stack_categories(timeline, replayed) if timeline.labels else {}
    peak = find_peak(replayed)
    bottom = [0.0] * len(ends)
    if not stacked:
        label = f"allocated, peak {format_size(replayed.peak_allocated_bytes)}"
        _fill(axes, ends, bottom, replayed.allocated_series, divisor, _ALLOCATED_COLOUR, label)
    for category, (name, colour) in _CATEGORIES.items():
        if category in stacked:
            sizes = stacked[category]
            label = f"{name}: {format_size(sizes[peak])}"
            bottom = _fill(axes, ends, bottom, sizes, divisor, colour, label)


def _fill(
    axes: Any,
    ends: Sequence[int],
    bottom: Sequence[float],
    sizes: Sequence[int],
    divisor: int,
    colour: str,
    label: str,
) -> list[float]:
    """Draw one area on top of another; returns its upper edge."""
    heights = [sizes[index] / divisor for index in ends[:-1]]
    heights += heights[-1:] or [0.0]
    top = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.fill_between(ends, bottom, top, step="post", color=colour, linewidth=0, label=label)
    return top


def _draw_reserved(axes: Any, replayed: Replay, divisor: int) -> None:
    changes = [(0, 0), *replayed.reserved_changes]
    changes.append((replayed.num_events, changes[-1][1]))
    axes.step(
        [index for index, _ in changes],
        [size / divisor for _, size in changes],
        where="post",
        color=_RESERVED_COLOUR,
        linewidth=1.5,
        label=f"reserved, peak {format_size(replayed.peak_reserved_bytes)}",
    )
    at, height = find_peak(replayed), replayed.peak_reserved_bytes / divisor
    axes.vlines(at, 0, height, color=_RESERVED_COLOUR, linewidth=0.9, linestyle=":")
    axes.plot([at], [height], marker="o", markersize=6, color=_RESERVED_COLOUR)


def _draw_ooms(axes: Any, replayed: Replay) -> None:
    if replayed.ooms:
        axes.plot(
            [oom.event_index for oom in replayed.ooms],
            [1.0] * len(replayed.ooms),
            transform=axes.get_xaxis_transform(),
            linestyle="none",
            marker="v",
            color=_WARNING_COLOUR,
            clip_on=False,
            label=f"out of memory, {len(replayed.ooms)}",
        )
