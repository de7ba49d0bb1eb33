"""Measures the allocator simulator: events per second, and how the cost of an event grows.

``make bench`` runs it. Figures are of this machine, in this run; only ratios travel. The real
allocator, in C++, handled 1.6 million events/s at 100k and at 1M events on a 2-core machine.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.table import Table

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.replay import OnOom, replay
from memgate.allocator.vectors import read_vectors
from memgate.timeline import Alloc, Free, Timeline, TimelineEvent

REAL_EVENTS_PER_SECOND = 1_600_000
DATA = Path(__file__).parents[1] / "data"
AMPLE = 1 << 50


def training_timeline(num_events: int) -> Timeline:
    """Repeat a recorded ResNet-50 run, each time freeing what it left behind."""
    with (DATA / "training_dev.jsonl.gz").open("rb") as stream:
        recorded = next(
            vector.events
            for vector in read_vectors(stream)
            if vector.id == "resnet50-batch=32-opt=momentum-cc80"
        )
    allocated = {event.block_id for event in recorded if isinstance(event, Alloc)}
    freed = {event.block_id for event in recorded if isinstance(event, Free)}
    run = (*recorded, *map(Free, sorted(allocated - freed)))
    repetitions = -(-num_events // len(run))
    return Timeline(events=(run * repetitions)[:num_events])


def random_timeline(num_events: int, *, seed: int = 1) -> Timeline:
    """Allocate and free at random; about a tenth of the events' number of blocks is live at a time.

    Sizes spread evenly over orders of magnitude, from 256 bytes to 64 MiB.
    """
    chance = random.Random(seed)
    num_live = num_events // 10
    events: list[TimelineEvent] = []
    live: list[int] = []
    for block_id in range(num_events):
        if len(live) > chance.random() * 2 * num_live:
            at = chance.randrange(len(live))
            live[at], live[-1] = live[-1], live[at]
            events.append(Free(live.pop()))
        else:
            events.append(Alloc(block_id, int(2 ** chance.uniform(8, 26))))
            live.append(block_id)
    return Timeline(events=tuple(events))


def seconds_per_event(timeline: Timeline, conf: str = "", *, repeats: int = 1) -> float:
    """Return the time of a replay per event, the best of some tries."""
    config = parse_alloc_conf(conf)
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        replay(timeline, config, AMPLE, on_oom=OnOom.CONTINUE)
        best = min(best, time.process_time() - start)
    return best / len(timeline.events)


def main() -> None:
    """Print the table."""
    table = Table(title="allocator simulator", title_justify="left")
    for column in ("sequence", "events", "events/s", "of the real one", "us/event", "growth"):
        table.add_column(column, justify="left" if column == "sequence" else "right")
    cases: list[tuple[str, Callable[[int], Timeline], str]] = [
        ("training (ResNet-50, repeated)", training_timeline, ""),
        ("random, live blocks grow along", random_timeline, ""),
        ("random, expandable segments", random_timeline, "expandable_segments:True"),
    ]
    for name, make, conf in cases:
        first: float | None = None
        for num_events in (10_000, 100_000, 1_000_000):
            cost = seconds_per_event(make(num_events), conf, repeats=3)
            first = first or cost
            table.add_row(
                name,
                f"{num_events:,}",
                f"{1 / cost:,.0f}",
                f"{1 / cost / REAL_EVENTS_PER_SECOND:.0%}",
                f"{cost * 1e6:.2f}",
                f"{cost / first:.2f}x",
            )
        table.add_section()
    console = Console(width=100)
    console.print(table)
    console.print(f"Python {sys.version.split()[0]}, processor time, best of 3 tries")


if __name__ == "__main__":
    main()
