"""Measures the way from a profiler trace to a timeline: time and memory, stage by stage.

``make bench-traces`` runs it, on a trace of yours with ``TRACE=trace.json``. Without one it makes
some of a small real trace, repeated: compact JSON, so they hold more events for each megabyte than
what the profiler writes. Figures are of this machine, in this run; only ratios travel.
"""

from __future__ import annotations

import argparse
import gzip
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
from memgate.links import link_blocks
from memgate.orchestration import orchestrate
from memgate.residents import find_model_bytes
from memgate.rules import DeviceTraits
from memgate.trace import read_trace
from tests.builders import TINY_TRACES

DATA = Path(__file__).parents[1] / "data" / "traces"
STAGES = ("read", "pair", "link", "model", "orchestrate")
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


def measure(path: Path) -> Cost:
    """Go the whole way once, and time it."""
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
    model = timed("model", lambda: find_model_bytes(trace, linked))
    timed("orchestrate", lambda: orchestrate(linked, model, _DEVICE))
    kinds = (trace.ops, trace.memory_events, trace.module_calls, trace.annotations)
    return Cost(num_events=sum(map(len, kinds)), seconds=seconds)


def measure_best(path: Path, repeats: int) -> Cost:
    """Take the best of some tries for each stage."""
    costs = [measure(path) for _ in range(repeats)]
    best = {stage: min(cost.seconds[stage] for cost in costs) for stage in STAGES}
    return Cost(num_events=costs[0].num_events, seconds=best)


def peak_bytes_of_reading(path: Path) -> int:
    """Return how much memory it takes to read a trace, in a process of its own."""
    command = [sys.executable, "-m", "tests.bench.traces", "--peak", str(path)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return int(done.stdout)


def _print_peak(path: Path) -> None:
    before = _peak_bytes()
    with path.open("rb") as stream:
        trace = read_trace(stream)
    sys.stdout.write(f"{_peak_bytes() - before}\n")
    del trace


def _peak_bytes() -> int:
    """Ask Linux; unlike the peak of ``getrusage``, this one does not begin with the parent's."""
    status = Path("/proc/self/status").read_text()
    (kib,) = (line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(kib) * 1024


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
    parser.add_argument("--peak", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.peak:
        _print_peak(options.peak)
        return
    table = Table(title="from a trace to a timeline", title_justify="left")
    columns = ("trace", "MB", "events", *(f"{stage}, s" for stage in STAGES), "read, MB/s", "peak")
    for column in columns:
        table.add_column(column, justify="left" if column == "trace" else "right", no_wrap=True)
    with tempfile.TemporaryDirectory() as folder:
        for path in _traces(options.traces, options.megabytes, Path(folder)):
            size, cost = path.stat().st_size, measure_best(path, options.repeats)
            table.add_row(
                path.name,
                f"{size / _MB:.0f}",
                f"{cost.num_events:,}",
                *(f"{cost.seconds[stage]:.2f}" for stage in STAGES),
                f"{size / _MB / cost.seconds['read']:.0f}",
                f"{peak_bytes_of_reading(path) / size:.1f}x",
            )
    console = Console(width=130)
    console.print(table)
    console.print(
        f"Python {sys.version.split()[0]}, processor time, best of {options.repeats} tries; peak:"
        " memory that reading takes, by the size of the trace"
    )


if __name__ == "__main__":
    main()
