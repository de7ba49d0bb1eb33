"""Shows where the two engines part: the same job on the CPU and on the phantom, side by side.

``python -m tests.bench.align SPEC`` runs it. What both allocate is aligned by size; each place
where they differ is a rule that is missing, or wrong.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from difflib import SequenceMatcher
from pathlib import Path

from rich.console import Console

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.replay import replay
from memgate.capacity import AMPLE_BYTES
from memgate.errors import MemgateError
from memgate.gpus import find_gpu
from memgate.jobspec import JobSpec
from memgate.timeline import Alloc, Free, Timeline
from memgate.units import format_size
from memgate_service.cli.reading import read_spec
from memgate_worker.engines.registry import start_engine
from memgate_worker.runtimes.runtime import Runtime, find_runtime

#: blocks are multiples of it
_ROUND = 512


def steps(timeline: Timeline) -> list[str]:
    """Write a timeline as lines that do not depend on ids: what is allocated, what is freed."""
    sizes: dict[int, str] = {}
    lines = []
    for event in timeline.events:
        if isinstance(event, Alloc):
            size = -(-event.size_bytes // _ROUND) * _ROUND
            sizes[event.block_id] = f"{size:>14,}"
            lines.append(f"+{size:>14,}")
        elif isinstance(event, Free):
            lines.append(f"-{sizes[event.block_id]}")
    return lines


def differences(ours: Sequence[str], theirs: Sequence[str], context: int) -> Iterator[str]:
    """Yield the places where two lists of lines part, with some lines before and after each."""
    matcher = SequenceMatcher(None, ours, theirs, autojunk=False)
    for group in matcher.get_grouped_opcodes(context):
        yield f"--- event {group[0][1]} of ours, {group[0][3]} of the phantom's"
        for kind, begin, end, their_begin, their_end in group:
            if kind == "equal":
                yield from (f"    {step}" for step in ours[begin:end])
            else:
                yield from (f"cpu {step}" for step in ours[begin:end])
                yield from (f"gpu {step}" for step in theirs[their_begin:their_end])


def _trace(engine: str, spec: JobSpec, gpu: str, runtime: Runtime) -> Timeline:
    with start_engine(engine, runtime) as started:
        return started.trace(spec, find_gpu(gpu)).timeline


def main(arguments: Sequence[str] | None = None) -> None:
    """Run both engines and print where they part."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("spec", type=Path, help="a job spec, JSON or YAML")
    parser.add_argument("--gpu", default="a100-40")
    parser.add_argument("--runtime")
    parser.add_argument("--context", type=int, default=3, help="lines around each place")
    asked = parser.parse_args(arguments)
    try:
        spec, runtime = read_spec(asked.spec), find_runtime(asked.runtime)
        told = {name: _trace(name, spec, asked.gpu, runtime) for name in ("profile", "phantom")}
    except MemgateError as error:
        sys.exit(error.message)
    console = Console(highlight=False, markup=False)
    for name, timeline in told.items():
        run = replay(timeline, parse_alloc_conf(""), AMPLE_BYTES)
        sizes = map(format_size, (run.peak_allocated_bytes, run.peak_reserved_bytes))
        console.print(f"{name}: {len(timeline.events)} events, allocated and reserved:", *sizes)
    for line in differences(steps(told["profile"]), steps(told["phantom"]), asked.context):
        console.print(line)


if __name__ == "__main__":
    main()
