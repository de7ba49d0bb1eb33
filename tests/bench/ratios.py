"""Measures ratios of processor times, and holds them to those of an earlier version.

``make bench-all`` runs it and writes ``build/bench.json``: all ratios, the seconds they were made
from, and the machine. Smaller is better for each. One that is a quarter larger than in
``tests/data/bench_ratios.json`` is a regression: the exit status is 1. With ``--renew``, that file
is written anew. ``make test`` holds the short ones to it (``test_ratios.py``).

Each ratio is the median of several turns, in each of which both sides are measured one after the
other, so that a busy machine slows both.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from statistics import median

import psutil
from rich.console import Console
from rich.table import Table

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.replay import Core, OnOom, replay
from memgate.gpus import CATALOGUE, GpuSpec, GpuTarget
from memgate.jobspec import JobSpec, parse_job_spec
from memgate.timeline import Timeline
from memgate_worker.engines.phantom.engine import PhantomEngine
from memgate_worker.engines.traced import TracedJob
from memgate_worker.runtimes.runtime import find_runtime
from memgate_worker.verdicts import estimate_run, fit_everywhere, fit_groups, largest_batch
from tests.bench.allocator import AMPLE, live_timeline, training_timeline
from tests.bench.real_allocator import measure_real

BASELINE = Path(__file__).parents[1] / "data" / "bench_ratios.json"
RESULT = Path("build/bench.json")

#: a ratio may be so much larger than the baseline's
MAX_REGRESSION = 1.25

#: returns processor seconds
Measure = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """What a ratio was in each turn."""

    #: processor seconds of both sides
    ours: list[float]
    against: list[float]

    @property
    def value(self) -> float:
        """The median of the turns."""
        return median(one / other for one, other in zip(self.ours, self.against, strict=True))

    def tell(self) -> dict[str, float]:
        """Return it as it is written down."""
        seconds = {"seconds": median(self.ours), "against_seconds": median(self.against)}
        return {"ratio": _rounded(self.value)} | {k: _rounded(v) for k, v in seconds.items()}


def measure_ratio(ours: Measure, against: Measure, turns: int) -> Ratio:
    """Measure both, turn and turn about; the first turn warms up."""
    ours(), against()
    pairs = [(ours(), against()) for _ in range(turns)]
    return Ratio(ours=[one for one, _ in pairs], against=[other for _, other in pairs])


def timed(work: Callable[[], object], repeats: int = 1) -> float:
    """Return the processor seconds of this process for one of some repetitions."""
    start = time.process_time()
    for _ in range(repeats):
        work()
    return (time.process_time() - start) / repeats


def replayed(timeline: Timeline, core: Core, repeats: int = 1) -> float:
    """Return the processor seconds of a replay, handing it over included."""
    config = parse_alloc_conf("")
    run = partial(replay, timeline, config, AMPLE, on_oom=OnOom.CONTINUE, core=core)
    return timed(run, repeats)


def known_run() -> TracedJob:
    """Return a run of ResNet-50 that was recorded before."""
    return TracedJob(
        timeline=training_timeline(3_500),
        engine="phantom",
        runtime="torch-2.14",
        versions={},
        alloc_conf="",
        num_parameters=0,
        notes=(),
        seconds=0.0,
    )


def find_short_ratios(turns: int = 5) -> Iterator[tuple[str, Ratio]]:
    """Measure what needs no runtime and no service, in a few seconds."""
    training, longer, shorter = map(training_timeline, (20_000, 100_000, 10_000))
    yield (
        "native of Python, training",
        measure_ratio(
            partial(replayed, training, Core.NATIVE, 5),
            partial(replayed, training, Core.PYTHON),
            turns,
        ),
    )
    live = live_timeline(50_000, num_live=10_000)
    yield (
        "native of Python, 10,000 live blocks",
        measure_ratio(
            partial(replayed, live, Core.NATIVE, 2), partial(replayed, live, Core.PYTHON), turns
        ),
    )
    yield (
        "an event among 100,000 of one among 10,000",
        measure_ratio(
            lambda: replayed(longer, Core.NATIVE) / 10,
            partial(replayed, shorter, Core.NATIVE, 5),
            turns,
        ),
    )
    known = known_run()
    of_python = partial(replayed, known.timeline, Core.PYTHON, 2)
    target = GpuTarget(gpu=CATALOGUE["a10g"])
    for name, conf in (("known", ""), ("another setting", "expandable_segments:True")):
        run = known.again(conf)
        asked = partial(timed, partial(estimate_run, run, target), 5)
        yield f"{name} of one replay in Python", measure_ratio(asked, of_python, turns)
    groups = [[gpu] for gpu in CATALOGUE.values()]
    fitted = partial(timed, lambda: fit_groups(lambda _: known, groups))
    yield "the catalogue of one replay in Python", measure_ratio(fitted, of_python, turns)


def find_long_ratios(turns: int) -> Iterator[tuple[str, Ratio]]:
    """Measure the promises that need long timelines."""
    million, few = training_timeline(1_000_000), training_timeline(10_000)
    yield (
        "native of Python, a million events",
        measure_ratio(
            partial(replayed, million, Core.NATIVE), partial(replayed, million, Core.PYTHON), turns
        ),
    )
    yield (
        "an event among a million of one among 10,000",
        measure_ratio(
            lambda: replayed(million, Core.NATIVE) / 100,
            partial(replayed, few, Core.NATIVE, 20),
            turns,
        ),
    )
    live = live_timeline(1_000_000)
    yield (
        "native of Python, 100,000 live blocks",
        measure_ratio(
            partial(replayed, live, Core.NATIVE), partial(replayed, live, Core.PYTHON), turns
        ),
    )


def find_run_ratios(turns: int) -> Iterator[tuple[str, Ratio]]:
    """Measure known runs beside new ones, on the phantom; and the simulator beside torch's own."""
    runtime = find_runtime("torch-2.14")
    with ExitStack() as stack:
        engine = stack.enter_context(PhantomEngine(runtime))
        sizes = count(16)

        def job(batch_size: int, **model: str) -> JobSpec:
            return parse_job_spec(
                {
                    "model": {"source": "torchvision", "name": "resnet50"} | model,
                    "input": {"sequence_length": 512} if model else {"shape": [3, 224, 224]},
                    "batch_size": batch_size,
                    "optimizer": {"name": "AdamW"},
                }
            )

        def of_all(work: Callable[[], object]) -> float:
            start = _all_seconds()
            work()
            return _all_seconds() - start

        def run(spec: JobSpec, gpu: GpuSpec) -> TracedJob:
            return engine.trace(spec, gpu)

        here, other = GpuTarget(gpu=CATALOGUE["rtx-3060"]), GpuTarget(gpu=CATALOGUE["a10g"])
        new = partial(of_all, lambda: estimate_run(run(job(next(sizes)), here.gpu), here))
        known = run(job(32), here.gpu)
        yield (
            "known of new",
            measure_ratio(partial(timed, lambda: estimate_run(known, other), 5), new, turns),
        )
        fitted = job(48)
        fit_everywhere(run, fitted)
        fit = partial(timed, lambda: fit_everywhere(run, fitted))
        yield "the catalogue of new", measure_ratio(fit, new, turns)
        starts = count(20)
        batch = partial(of_all, lambda: largest_batch(run, job(next(starts)), other))
        yield "the largest batch of new", measure_ratio(batch, new, turns)
    timeline = training_timeline(100_000)
    yield (
        "native of torch's own allocator",
        measure_ratio(
            partial(replayed, timeline, Core.NATIVE),
            partial(measure_real, runtime, timeline),
            turns,
        ),
    )


def find_service_ratios(turns: int) -> Iterator[tuple[str, Ratio]]:
    """Measure a cached answer beside a constant route: seconds per request under load."""
    from tests.bench import load

    found = load.run(turns, 2)
    yield (
        "cached of a constant route",
        Ratio(
            ours=[1 / one.rate for one in found.cached],
            against=[1 / one.rate for one in found.constant],
        ),
    )


def find_regressions(found: Mapping[str, float], baseline: Mapping[str, float]) -> list[str]:
    """Say which ratios are missing, new, or too much larger than they were."""
    said = [
        f"{name}: {found[name]:.4g}, in the baseline {known:.4g}: {found[name] / known:.2f} times"
        for name, known in baseline.items()
        if name in found and found[name] > MAX_REGRESSION * known
    ]
    said += [f"{name}: not measured" for name in baseline if name not in found]
    return said + [f"{name}: not in the baseline (--renew)" for name in found.keys() - baseline]


def read_baseline(kind: str) -> dict[str, float]:
    """Return the ratios that were, ``short`` or ``full``."""
    known: dict[str, dict[str, float]] = json.loads(BASELINE.read_text())
    return known[kind]


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")


def _all_seconds() -> float:
    """Return the processor seconds of this process and of those that it has started."""
    me = psutil.Process()
    return time.process_time() + sum(
        sum(child.cpu_times()[:4]) for child in me.children(recursive=True)
    )


def main() -> None:
    """Measure, write the file, print a table, and judge."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.ratios")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--renew", action="store_true", help="make this run the baseline")
    parser.add_argument("--output", type=Path, default=RESULT)
    options = parser.parse_args()
    short = dict(find_short_ratios(options.turns))
    full: dict[str, Ratio] = {}
    for find in (find_long_ratios, find_run_ratios, find_service_ratios):
        full.update(find(options.turns))
    _write(options.output, short | full)
    values = {
        kind: {name: _rounded(ratio.value) for name, ratio in found.items()}
        for kind, found in (("short", short), ("full", full))
    }
    if options.renew:
        BASELINE.write_text(json.dumps(values, indent=2) + "\n")
    baseline = read_baseline("short") | read_baseline("full")
    _show(short | full, baseline)
    sys.exit("\n".join(find_regressions(values["short"] | values["full"], baseline)) or 0)


def _write(path: Path, ratios: Mapping[str, Ratio]) -> None:
    machine = {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "load": [round(one, 1) for one in os.getloadavg()],
    }
    told = {name: ratio.tell() for name, ratio in ratios.items()}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"machine": machine, "ratios": told}, indent=2) + "\n")


def _show(ratios: Mapping[str, Ratio], baseline: Mapping[str, float]) -> None:
    table = Table(title="ratios of processor time: smaller is better")
    for column in ("", "ratio", "baseline", "seconds", "against"):
        table.add_column(column, justify="left" if not column else "right")
    for name, ratio in ratios.items():
        known = f"{baseline[name]:.4g}" if name in baseline else ""
        value, *seconds = (f"{one:.4g}" for one in ratio.tell().values())
        table.add_row(name, value, known, *seconds)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
