"""Answers as text for people: the sentences are those of ``memgate.explanation``."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from memgate.decision import Decision
from memgate.gpu_plan import GpuPlan
from memgate.gpus import CATALOGUE
from memgate.max_batch import MaxBatch
from memgate.report import Estimate, Fit
from memgate.units import format_size

#: how many GPUs are named on which a job fits
_MAX_NAMED = 5

_COLOURS = {
    Decision.ADMIT: "green",
    Decision.UNCERTAIN: "yellow",
    Decision.REJECT: "red",
    Decision.UNKNOWN: "dim",
}


def show_estimate(answer: Estimate, *, as_json: bool, server: str = "") -> None:
    """Print an answer for a program, or for a person; ``server`` is where it came from."""
    if as_json:
        typer.echo(answer.model_dump_json())
    else:
        print_estimate(answer, server=server)


def print_estimate(answer: Estimate, *, server: str = "") -> None:
    """Print the headline, what would help, why, and what holds the memory at the peak."""
    console = _console()
    said = answer.explanation
    console.print(f"{_mark(answer.decision)}: {escape(said.headline)}")
    for text in said.helps:
        console.print(f"try: {text}", markup=False)
    _print_notes(console, answer)
    if answer.ranks:
        console.print(_ranks(answer))
    console.print(_breakdown(answer))
    console.print(f"peak: {answer.peak_text}")
    _print_phases(console, answer)
    if answer.oom is not None:
        verb = "would" if answer.decision is Decision.REJECT else "may"
        console.print(f"PyTorch {verb} say: {answer.oom.message}", markup=False)
    if answer.fits_on or answer.needs_bytes > max(gpu.memory_bytes for gpu in CATALOGUE.values()):
        # otherwise it is in doubt everywhere
        console.print(f"fits on: {_name_some(answer.fits_on)}")
    if answer.recording is not None:
        said_by = answer.recording.command or "a job spec"
        console.print(f"recorded for {answer.recording.gpu}: {said_by}", markup=False)
    _print_page(console, answer.page, server)
    with_what = ", ".join(filter(None, (f"{answer.engine} engine", answer.runtime)))
    console.print(f"{with_what}, {answer.timings_ms['total'] / 1000:.1f} s")


def _name_some(fits_on: list[str]) -> str:
    """Name the smallest GPUs that admit a job, and say how many more there are."""
    if not fits_on:
        return "no GPU of the catalogue"
    named = ", ".join(fits_on[:_MAX_NAMED])
    more = len(fits_on) - _MAX_NAMED
    return f"{named} and {more} more (memgate fit lists all)" if more > 0 else named


def print_what_was_seen(answer: Estimate) -> None:
    """Print what there is to know about a job without a verdict."""
    console = _console()
    _print_notes(console, answer)
    _print_phases(console, answer)


def _print_notes(console: Console, answer: Estimate) -> None:
    for text in answer.explanation.why:
        console.print(f"note: {text}", markup=False)


def _print_phases(console: Console, answer: Estimate) -> None:
    if answer.phases:
        peaks = [f"{name} {format_size(size)}" for name, size in answer.phases.items()]
        console.print(f"allocated by phase, with the context: {', '.join(peaks)}")


def _ranks(answer: Estimate) -> Table:
    table = Table("rank", "decision", "needs", "peak")
    for one in answer.ranks:
        sizes = (format_size(one.needs_bytes), format_size(one.peak_bytes))
        table.add_row(str(one.rank), _mark(one.decision), *sizes)
    return table


def _breakdown(answer: Estimate) -> Table:
    table = Table("at the peak", "")
    for name, size in sorted(answer.breakdown.items(), key=lambda item: -item[1]):
        if size:
            table.add_row(name.replace("_", " "), format_size(size))
    table.add_section()
    table.add_row("in all", format_size(answer.peak_bytes))
    return table


def print_fit(fit: Fit, *, server: str = "") -> None:
    """Print every GPU, why nothing is known about some, and the headline."""
    console = _console()
    table = Table("gpu", "has", "decision", "needs")
    for entry in fit.gpus:
        needs = "" if entry.needs_bytes is None else format_size(entry.needs_bytes)
        table.add_row(entry.gpu, format_size(entry.capacity_bytes), _mark(entry.decision), needs)
    console.print(table)
    unknown = {entry.reason.message for entry in fit.gpus if entry.decision is Decision.UNKNOWN}
    for message in sorted(unknown):
        console.print(f"unknown: {message}", markup=False)
    console.print(fit.headline, markup=False)
    _print_page(console, fit.page, server)


def print_max_batch(found: MaxBatch, *, server: str = "") -> None:
    """Print the headline, and the sizes that were tried."""
    console = _console()
    colour = "red" if found.batch_size is None else "green"
    console.print(f"[bold {colour}]{escape(found.headline)}[/]")
    if not found.is_monotone:
        console.print(
            "note: a larger batch does not always need more here, so a larger one than this may be"
            " admitted, too"
        )
    table = Table("batch size", "decision", "needs")
    for tried in found.tried:
        needs = format_size(tried.needs_bytes)
        table.add_row(str(tried.batch_size), _mark(tried.decision), needs)
    console.print(table)
    if found.proof:
        console.print(found.proof, markup=False)
    _print_page(console, found.page, server)


def print_plan(plan: GpuPlan) -> None:
    """Print every way that was tried, and the headline."""
    console = _console()
    table = Table("way", "GPUs", "decision", "needs on each", "sent by each in a step", "runs")
    for line in plan.lines:
        table.add_row(
            line.way,
            str(line.num_gpus),
            _mark(line.decision),
            "" if line.needs_bytes is None else format_size(line.needs_bytes),
            format_size(line.traffic_bytes),
            ", ".join(map(str, line.tried)),
        )
    console.print(table)
    for line in plan.lines:
        if line.decision is Decision.UNKNOWN:
            console.print(f"{line.way}: {line.reason}", markup=False)
    if plan.lines:
        runs = "1 run" if plan.num_runs == 1 else f"{plan.num_runs} runs"
        console.print(f"each line was run, {runs} in all")
    console.print(plan.headline, markup=False)


def _console() -> Console:
    """Make a console that leaves long sentences to the terminal: a pipe gets whole lines."""
    return Console(highlight=False, soft_wrap=True)


def _mark(decision: Decision) -> str:
    """Write a decision in its colour."""
    return f"[bold {_COLOURS[decision]}]{decision}[/]"


def _print_page(console: Console, page: str | None, server: str) -> None:
    """Say where the answer can be seen; a path is on the server."""
    if page is not None:
        address = f"{server.rstrip('/')}{page}" if page.startswith("/") else page
        console.print(f"page: {address}", markup=False)
