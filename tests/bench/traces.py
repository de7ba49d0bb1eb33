"""Measures the way from a profiler trace to a verdict: time and memory, stage by stage.

``make bench-traces`` runs it, on a trace of yours with ``TRACE=trace.json``. Without one it makes
some of a small real trace, repeated: compact JSON, so they hold more events for each megabyte than
what the profiler writes. Figures are of this machine, in this run; only ratios travel.
"""

from __future__ import annotations

import argparse
import gzip
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from rich.console import Console
from rich.table import Table

from memgate.blocks import pair_blocks
from memgate.collector import pause_collector
from memgate.file_kinds import FileKind
from memgate.gpus import CATALOGUE, GpuTarget
from memgate.links import link_blocks
from memgate.orchestration import orchestrate
from memgate.plan import DeviceTraits
from memgate.repetition import repeat_iterations
from memgate.residents import find_residents
from memgate.trace import read_trace
from memgate_worker.uploads.client import judge_upload
from memgate_worker.uploads.judging import allowed_memory_bytes
from memgate_worker.uploads.question import UploadQuestion
from tests.builders import TINY_TRACES

DATA = Path(__file__).parents[1] / "data" / "traces"
STAGES = ("read", "pair", "link", "residents", "repeat", "orchestrate")
_DEVICE = DeviceTraits(compute_capability=(8, 0))
_MB = 1_000_000
#: beyond any address of a process: repetitions do not share memory
_ADDRESSES = 1 << 48

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What a trace takes."""

    #: operators, memory events, calls of modules, annotations
    num_events: int
    #: processor time by stage
    seconds: dict[str, float]


def repeat_trace(num_bytes: int, name: str = TINY_TRACES[0]) -> bytes:
    """Make a valid trace of at least this size: a job that does the same again and again.

    Each repetition is later, at other addresses, and has sequence numbers of its own.
    """
    document = msgspec.json.decode(gzip.decompress((DATA / f"{name}.json.gz").read_bytes()))
    events = document["traceEvents"]
    begins = [event["ts"] for event in events if "ts" in event]
    period_us = int(max(begins) - min(begins)) * 2
    numbers = [event.get("args", {}).get("Sequence number", 0) for event in events]
    period = _Period(period_us, max(numbers) + 1)
    chunks: list[bytes] = []
    size = 0
    while size < num_bytes:
        chunk = msgspec.json.encode([period.shift(event, len(chunks)) for event in events])[1:-1]
        size += len(chunk) + 1
        chunks.append(chunk)
    return b'{"schemaVersion":1,"traceEvents":[' + b",".join(chunks) + b"]}"


class _Period:
    """By how much a repetition is shifted."""

    def __init__(self, period_us: int, num_numbers: int) -> None:
        self._by = {"ts": period_us, "Addr": _ADDRESSES, "Sequence number": num_numbers}

    def shift(self, event: dict[str, Any], times: int) -> dict[str, Any]:
        """Return an event as it is in a later repetition."""
        shifted = self._shift_values(event, times)
        if "args" in event:
            shifted["args"] = self._shift_values(event["args"], times)
        return shifted

    def _shift_values(self, values: dict[str, Any], times: int) -> dict[str, Any]:
        return values | {
            name: values[name] + by * times for name, by in self._by.items() if name in values
        }


@pause_collector()
def measure(path: Path) -> Cost:
    """Go the whole way once, and time it; without the garbage collector, as it always is."""
    seconds: dict[str, float] = {}

    def timed(stage: str, work: Callable[[], _Result]) -> _Result:
        start = time.process_time()
        result = work()
        seconds[stage] = time.process_time() - start
        return result

    with path.open("rb") as stream:
        trace = timed("read", lambda: read_trace(stream))
    blocks = timed("pair", lambda: pair_blocks(trace))
    linked = timed("link", lambda: link_blocks(blocks, trace))
    residents = timed("residents", lambda: find_residents(trace, linked))
    repeated = timed("repeat", lambda: repeat_iterations(linked, residents))
    timed("orchestrate", lambda: orchestrate(repeated.linked, residents, _DEVICE))
    kinds = (trace.ops, trace.memory_events, trace.module_calls, trace.annotations)
    return Cost(num_events=sum(map(len, kinds)), seconds=seconds)


def measure_best(path: Path, repeats: int) -> Cost:
    """Take the best of some tries for each stage."""
    costs = [measure(path) for _ in range(repeats)]
    best = {stage: min(cost.seconds[stage] for cost in costs) for stage in STAGES}
    return Cost(num_events=costs[0].num_events, seconds=best)


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadCost:
    """What it takes from an upload to its verdict, in the limited process that judges it."""

    seconds: float
    processor_seconds: float
    peak_bytes: int


def measure_upload(path: Path) -> UploadCost:
    """Have a trace judged as an upload; from a small process, so that its only child is counted."""
    command = [sys.executable, "-m", "tests.bench.traces", "--upload", str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return msgspec.json.decode(done.stdout, type=UploadCost)


def _print_upload(path: Path) -> None:
    start = time.perf_counter()
    with path.open("rb") as stream:
        judge_upload(stream, UploadQuestion(target=GpuTarget(gpu=CATALOGUE["a100-40"])))
    seconds = time.perf_counter() - start
    taken = resource.getrusage(resource.RUSAGE_CHILDREN)
    cost = UploadCost(
        seconds=seconds,
        processor_seconds=taken.ru_utime + taken.ru_stime,
        peak_bytes=taken.ru_maxrss * 1024,
    )
    sys.stdout.write(msgspec.json.encode(cost).decode())


def _traces(given: Sequence[Path], megabytes: Sequence[int], folder: Path) -> Iterator[Path]:
    yield from given
    for size in () if given else megabytes:
        path = folder / f"{TINY_TRACES[0]}, repeated"
        path.write_bytes(repeat_trace(size * _MB))
        yield path


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("traces", nargs="*", type=Path, help="JSON, not packed")
    parser.add_argument("--megabytes", nargs="+", type=int, default=[16, 64, 200])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--upload", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.upload:
        _print_upload(options.upload)
        return
    table = Table(title="from a trace to a verdict", title_justify="left")
    columns = ("trace", "MB", "events", *STAGES, "timeline", "verdict", "on the clock", "peak, MB")
    for column in columns:
        table.add_column(column, justify="left" if column == "trace" else "right", no_wrap=True)
    with tempfile.TemporaryDirectory() as folder:
        for path in _traces(options.traces, options.megabytes, Path(folder)):
            size, cost = path.stat().st_size, measure_best(path, options.repeats)
            upload = measure_upload(path)
            table.add_row(
                path.name,
                f"{size / _MB:.0f}",
                f"{cost.num_events:,}",
                *(f"{cost.seconds[stage]:.2f}" for stage in STAGES),
                f"{sum(cost.seconds[stage] for stage in STAGES[1:]):.2f}",
                f"{upload.processor_seconds:.2f}",
                f"{upload.seconds:.2f}",
                f"{upload.peak_bytes / _MB:.0f} of {_allowed_bytes(size) / _MB:.0f}",
            )
    console = Console(width=160)
    console.print(table)
    console.print(
        f"Python {sys.version.split()[0]}; seconds of processor time, best of {options.repeats}"
        " tries. Timeline: all stages after reading. Verdict: once, from the file to the answer in"
        " the process of an upload, its start included; on the clock; its memory, and what it may"
        " take"
    )


def _allowed_bytes(size: int) -> int:
    return allowed_memory_bytes(FileKind.TRACE, size)


if __name__ == "__main__":
    main()
