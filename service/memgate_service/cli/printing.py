"""Answers as text for people."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.table import Table

from memgate.report import Estimate
from memgate.units import format_size


def show_estimate(answer: Estimate, *, as_json: bool) -> None:
    """Print an answer for a program, or for a person."""
    if as_json:
        typer.echo(answer.model_dump_json())
    else:
        print_estimate(answer)


def print_estimate(answer: Estimate) -> None:
    """Tell a person."""
    console = Console(highlight=False)
    reason, *others = answer.reasons
    colour = {"admit": "green", "reject": "red", "uncertain": "yellow"}[answer.decision]
    console.print(f"[bold {colour}]{answer.decision}[/]: {reason.message}")
    for other in others:
        console.print(f"note: {other.message}")
    table = Table("at the peak", "", title_justify="left")
    for name, size in sorted(answer.breakdown.items(), key=lambda item: -item[1]):
        if size:
            table.add_row(name.replace("_", " "), format_size(size))
    table.add_section()
    table.add_row("peak, as the driver shows it", format_size(answer.peak_bytes))
    table.add_row("least in which it runs", format_size(answer.required_bytes))
    console.print(table)
    if answer.oom is not None:
        console.print(f"PyTorch would say: {answer.oom.message}")
    console.print(f"fits on: {', '.join(answer.fits_on) or 'no GPU of the catalogue'}")
    with_what = ", ".join(filter(None, (f"{answer.engine} engine", answer.runtime)))
    console.print(f"{with_what}, {answer.timings_ms['total'] / 1000:.1f} s")
