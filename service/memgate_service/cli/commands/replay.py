"""``memgate replay``: compare the allocator simulator with recordings of the real allocator."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from memgate.allocator.allocators import ALLOCATORS
from memgate.allocator.conformance import Comparison, Mismatch, compare, replay_vector
from memgate.allocator.replay import Core, Replay
from memgate.allocator.vectors import Vector, read_vectors
from memgate.curves import make_curve
from memgate.errors import (
    AllocatorConfigError,
    InputError,
    TimelineError,
    UnsupportedAllocatorError,
)
from memgate.timeline import Timeline
from memgate.units import clip, format_size
from memgate_service.cli.commands.options import CurveFile
from memgate_service.cli.curves import prepare_curve, write_curve
from memgate_service.cli.plots import name_picture, plot_replay

#: mismatches shown to a person; ``--json`` gives all
_MAX_SHOWN = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Summary:
    first: tuple[Vector, Replay]
    comparisons: tuple[Comparison, ...]
    #: time in the simulator alone, without reading and comparing
    replay_seconds: float

    @property
    def matched(self) -> int:
        return sum(comparison.is_match for comparison in self.comparisons)

    @property
    def events_per_second(self) -> float:
        num_events = sum(comparison.num_events for comparison in self.comparisons)
        return num_events / self.replay_seconds if self.replay_seconds else 0.0

    @property
    def core(self) -> Core:
        return self.first[1].core

    @property
    def not_compared(self) -> list[str]:
        return sorted({name for comparison in self.comparisons for name in comparison.not_compared})


def replay_command(
    vectors: Annotated[
        Path,
        typer.Argument(
            metavar="VECTORS",
            help="JSON lines, plain or gzip: allocator or training recordings. '-': from stdin.",
        ),
    ],
    record: Annotated[
        str | None, typer.Option(metavar="ID", help="Replay only the record with this id.")
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.png",
            dir_okay=False,
            help="Draw reserved and allocated memory of one record: --record, or the first.",
        ),
    ] = None,
    curve: CurveFile = None,
    allocator: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=f"Allocator to replay on: {', '.join(ALLOCATORS)}. Recordings are of caching.",
        ),
    ] = "caching",
    core: Annotated[
        Core | None,
        typer.Option(
            help="Program to replay with: the native core where it was built, unless given."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object instead of text.")
    ] = False,
) -> None:
    """Replay recordings of PyTorch's CUDA caching allocator and compare every answer.

    Prints how many records match in everything they record: peaks, each change of reserved memory,
    each segment taken or given back, each out-of-memory. Exit status 0 only if all do.

    Example: memgate replay recordings.jsonl.gz --plot picture.png
    """
    data = prepare_curve(curve) if curve is not None else None
    replay_one = partial(_replay, allocator=allocator, core=core)
    summary = _replay_file(vectors, record, replay_one, silent=as_json)
    if plot is not None:
        plot = name_picture(plot)
        _plot(*summary.first, plot)
    if data is not None:
        write_curve(make_curve(Timeline(events=()), summary.first[1]), data)
    if as_json:
        typer.echo(_to_json(summary))
    else:
        _print_summary(summary, plot=plot)
    raise typer.Exit(0 if summary.matched == len(summary.comparisons) else 1)


def _replay_file(
    path: Path, record: str | None, replay_one: Callable[[Vector], Replay], *, silent: bool
) -> _Summary:
    """Replay all records of a file, or the one that is named."""
    first: tuple[Vector, Replay] | None = None
    comparisons: list[Comparison] = []
    seconds = 0.0
    with _opened(path) as stream, _progress(path, silent=silent) as report:
        for vector in read_vectors(stream):
            report(stream)
            if record is not None and vector.id != record:
                continue
            start = time.perf_counter()
            replayed = replay_one(vector)
            seconds += time.perf_counter() - start
            comparisons.append(compare(vector, replayed))
            first = first or (vector, replayed)
            if record is not None:
                break
    if first is None:
        raise InputError(f"{path}: no record has the id {record!r}; --record takes an exact id")
    return _Summary(first=first, comparisons=tuple(comparisons), replay_seconds=seconds)


def _replay(vector: Vector, *, allocator: str, core: Core | None) -> Replay:
    try:
        return replay_vector(vector, allocator_name=allocator, core=core)
    except (AllocatorConfigError, UnsupportedAllocatorError, TimelineError) as error:
        raise type(error)(f"record {vector.id!r}: {error.message}") from None


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file, or standard input for ``-``; errors about it name it."""
    try:
        if path == Path("-"):
            if sys.stdin is None:
                raise InputError("there is no standard input to read from")
            yield sys.stdin.buffer
        else:
            with path.open("rb") as stream:
                yield stream
    except OSError as error:
        raise InputError(f"{path}: {error.strerror or error}") from None
    except InputError as error:
        raise type(error)(f"{path}: {error.message}") from None


@contextmanager
def _progress(path: Path, *, silent: bool) -> Iterator[Callable[[BinaryIO], None]]:
    """Show how much of the file is done, on a terminal only."""
    console = Console(stderr=True)
    columns = (
        TextColumn("[progress.description]{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
    )
    hidden = silent or not console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=hidden) as progress:
        size_bytes = path.stat().st_size if path.is_file() else None
        task = progress.add_task(f"replaying {path.name}", total=size_bytes)

        def report(stream: BinaryIO) -> None:
            if size_bytes is not None:
                progress.update(task, completed=stream.tell())

        yield report


def _plot(vector: Vector, replayed: Replay, path: Path) -> None:
    setting = vector.config or "default settings"
    plot_replay(
        replayed,
        title=f"{vector.id}\n{setting}",
        capacity_bytes=vector.capacity_bytes,
        path=path,
    )


def _to_json(summary: _Summary) -> str:
    document = {
        "matched": summary.matched,
        "total": len(summary.comparisons),
        "events_per_second": round(summary.events_per_second),
        "core": summary.core,
        "mismatches": [
            asdict(mismatch)
            for comparison in summary.comparisons
            for mismatch in comparison.mismatches
        ],
        "not_compared": summary.not_compared,
    }
    return msgspec.json.encode(document).decode()


def _print_summary(summary: _Summary, *, plot: Path | None) -> None:
    console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
    if len(summary.comparisons) == 1:
        console.print(_figures(*summary.first))
    mismatches = [found for comparison in summary.comparisons for found in comparison.mismatches]
    if mismatches:
        console.print(_mismatch_table(mismatches))
    if len(mismatches) > _MAX_SHOWN:
        console.print(f"and {len(mismatches) - _MAX_SHOWN} more; --json names all")
    if summary.not_compared:
        console.print(f"not compared, unknown fields: {', '.join(summary.not_compared)}")
    console.print(
        f"matched {summary.matched} of {len(summary.comparisons)}"
        f"  ({summary.events_per_second:,.0f} events/s, {summary.core} core)"
    )
    if plot is not None:
        console.print(f"picture: {plot}")


def _figures(vector: Vector, replayed: Replay) -> Table:
    stats = replayed.stats
    table = Table(title=Text(vector.id), title_justify="left", show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    table.add_row("allocator setting", Text(vector.config or "(default)"))
    table.add_row("device capacity", format_size(vector.capacity_bytes))
    table.add_row("events", f"{replayed.num_events:,}")
    table.add_row("peak requested", format_size(stats.all.peak_requested_bytes))
    table.add_row("peak allocated", format_size(stats.all.peak_allocated_bytes))
    table.add_row("peak reserved", format_size(stats.all.peak_reserved_bytes))
    table.add_row("segments at the peak", f"{stats.all.peak_segment:,}")
    table.add_row("cache given back, then retried", f"{stats.num_alloc_retries:,}")
    table.add_row("out of memory", f"{len(replayed.ooms):,}")
    if replayed.oom is not None:
        table.add_row("first at event", f"{replayed.oom.event_index:,}")
        table.add_row("PyTorch would say", replayed.oom.details.message)
    return table


def _mismatch_table(mismatches: list[Mismatch]) -> Table:
    table = Table()
    for column in ("record", "field", "event", "real allocator", "simulator"):
        table.add_column(column, overflow="fold")
    for found in mismatches[:_MAX_SHOWN]:
        event = "" if found.event is None else str(found.event)
        cells = (found.id, found.field, event, clip(found.want), clip(found.got))
        table.add_row(*map(Text, cells))
    return table
