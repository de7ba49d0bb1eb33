"""Replay -> a picture: what was reserved and allocated over time.

matplotlib is imported when a picture is drawn and not before: nothing else needs it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from memgate.allocator.replay import Replay
from memgate.errors import InputError
from memgate.units import GIB, MIB, format_size


def make_figure(width_inches: float, height_inches: float) -> Any:
    """Make an empty figure.

    Raises:
        InputError: if matplotlib is missing, with the command that installs it.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("--plot needs matplotlib; run: pip install 'memgate[plot]'") from None
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


def plot_replay(replayed: Replay, *, title: str, capacity_bytes: int, path: Path) -> None:
    """Draw the reserved and allocated curves of a replay into a PNG, SVG or PDF file.

    Raises:
        InputError: if matplotlib is missing or the file cannot be written as asked.
    """
    figure = make_figure(10, 5.2)
    axes = figure.add_subplot()
    peak = replayed.peak_reserved_bytes
    divisor, unit = (GIB, "GiB") if peak > GIB else (MIB, "MiB")
    _draw_curves(axes, replayed, divisor)
    _mark_peak(axes, replayed, divisor)
    if capacity_bytes <= 2 * peak:
        label = f"capacity {format_size(capacity_bytes)}"
        axes.axhline(capacity_bytes / divisor, color="#b03030", linestyle="--", label=label)
    if replayed.ooms:
        axes.plot(
            [oom.event_index for oom in replayed.ooms],
            [1.0] * len(replayed.ooms),
            transform=axes.get_xaxis_transform(),
            linestyle="none",
            marker="v",
            color="#b03030",
            clip_on=False,
            label=f"out of memory, {len(replayed.ooms)}",
        )
    axes.set_title(title, loc="left", fontsize=11, parse_math=False)
    axes.set_xlabel("event (allocation or free)")
    axes.set_ylabel(unit)
    axes.set_xlim(0, max(1, replayed.num_events - 1))
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside lower center", ncols=4, frameon=False)
    save_figure(figure, path)


def _draw_curves(axes: Any, replayed: Replay, divisor: int) -> None:
    indices = range(replayed.num_events)
    allocated = [size / divisor for size in replayed.allocated_series]
    changes = [(0, 0), *replayed.reserved_changes]
    changes.append((max(0, replayed.num_events - 1), changes[-1][1]))
    axes.step(
        [index for index, _ in changes],
        [size / divisor for _, size in changes],
        where="post",
        color="#1f4e79",
        linewidth=1.6,
        label=f"reserved, peak {format_size(replayed.peak_reserved_bytes)}",
    )
    label = f"allocated, peak {format_size(replayed.peak_allocated_bytes)}"
    axes.fill_between(indices, allocated, color="#f2a541", alpha=0.75, linewidth=0, label=label)


def _mark_peak(axes: Any, replayed: Replay, divisor: int) -> None:
    peak = replayed.peak_reserved_bytes
    at = next((index for index, size in replayed.reserved_changes if size == peak), 0)
    axes.plot([at], [peak / divisor], marker="o", color="#1f4e79")
