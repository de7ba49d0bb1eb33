"""Holds what two small batch sizes tell of others against runs at those sizes.

``make extrapolation MODELS=models.json`` runs it, for every model of the file: names, and what each
means, as ``memgate accuracy`` reads them. Batch sizes 3 and 5 tell 4, in between, and 9, beyond;
both are really run, and compared block by block (size, call, order, where it is given back) and,
once orchestrated, event by event.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from memgate.accuracy import truth_job
from memgate.errors import InputError, MemgateError
from memgate.extrapolation import RunComparison, compare, extrapolate
from memgate.gpus import find_gpu
from memgate.jobspec import JobSpec
from memgate.orchestration import orchestrate
from memgate.plan import DeviceTraits
from memgate.timeline import Timeline
from memgate.units import GIB
from memgate_worker.engines.profile.engine import ProfileEngine
from memgate_worker.limits import DEFAULT_LIMITS, RunLimits
from memgate_worker.runtimes.runtime import find_runtime

BATCHES = (3, 5)
TOLD = (4, 9)
DEVICE = DeviceTraits(compute_capability=find_gpu("a100-40").compute_capability)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """What was told beside what was run, at one batch size."""

    batch_size: int
    blocks: RunComparison
    num_events: int
    #: of the timelines
    other_events: int

    @property
    def is_complete(self) -> bool:
        """Nothing differs."""
        return self.blocks.num_differences == 0 and self.other_events == 0

    def __str__(self) -> str:
        if self.is_complete:
            return "all"
        found = self.blocks
        return (
            f"not {found.other_calls} calls, {found.other_sizes} sizes,"
            f" {found.other_lifetimes} lifetimes, {self.other_events} events"
        )


def read_models(path: Path) -> dict[str, Any]:
    """Read the file.

    Raises:
        InputError: if it is not there or is no JSON object.
    """
    try:
        models = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {error}; give it with: make extrapolation MODELS=path") from None
    if not isinstance(models, dict):
        raise InputError(f"{path}: not an object of names and models; see tests/data/models.json")
    return models


def measure(
    engine: ProfileEngine,
    spec: JobSpec,
    told: Sequence[int] = TOLD,
    *,
    limits: RunLimits = DEFAULT_LIMITS,
) -> list[Agreement]:
    """Run a job at small batch sizes and at those that they tell, and compare."""
    first, second = (engine.profile(spec, batch, limits) for batch in BATCHES)
    found = []
    for batch in told:
        expected = extrapolate(first.linked, second.linked, BATCHES, batch)
        really = engine.profile(spec, batch, limits)
        timelines = (
            orchestrate(expected, first.residents, DEVICE),
            orchestrate(really.linked, really.residents, DEVICE),
        )
        found.append(
            Agreement(
                batch_size=batch,
                blocks=compare(expected, really.linked),
                num_events=len(timelines[1].events),
                other_events=_count_other_events(*timelines),
            )
        )
    return found


def _count_other_events(one: Timeline, other: Timeline) -> int:
    return sum(mine != theirs for mine, theirs in zip_longest(one.events, other.events))


def _measure_all(
    models: Mapping[str, Any], options: argparse.Namespace, console: Console
) -> dict[str, tuple[str, list[Agreement] | str]]:
    """Measure each model with the first optimizer that this machine has memory for."""
    limits = RunLimits(memory_bytes=int(options.host_memory * GIB))
    found: dict[str, tuple[str, list[Agreement] | str]] = {}
    with ProfileEngine(find_runtime(options.runtime)) as engine:
        for name, model in models.items():
            start = time.perf_counter()
            for optimizer in options.optimizers:
                spec = truth_job(model, batch_size=1, optimizer=optimizer)
                try:
                    found[name] = optimizer, measure(engine, spec, limits=limits)
                    break
                except MemgateError as error:
                    found[name] = optimizer, error.message
                    console.print(f"{name} with {optimizer}: {error.message}")
            seconds = time.perf_counter() - start
            said = found[name][1]
            agrees = "" if isinstance(said, str) else f", {' and '.join(map(str, said))} agree"
            console.print(f"{name}: {seconds:.0f} s{agrees}")
    return found


def _table(found: Mapping[str, tuple[str, list[Agreement] | str]]) -> Table:
    table = Table(
        *("model", "optimizer", "calls", "blocks", "events"),
        *(f"batch {batch} agrees" for batch in TOLD),
        title=f"batches {BATCHES[0]} and {BATCHES[1]} tell others",
        title_justify="left",
    )
    for name, (optimizer, agreements) in found.items():
        if isinstance(agreements, str):
            table.add_row(name, optimizer, "", "", "", "not run", "not run")
            continue
        blocks = agreements[0].blocks
        sizes = (blocks.num_calls, blocks.num_blocks, agreements[0].num_events)
        table.add_row(name, optimizer, *(f"{size:,}" for size in sizes), *map(str, agreements))
    return table


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make extrapolation", description=__doc__)
    parser.add_argument("models", type=Path, help="such as tests/data/models.json")
    parser.add_argument("--only", nargs="+", help="names of the file")
    parser.add_argument("--runtime", help="library versions; see: memgate runtimes")
    parser.add_argument("--host-memory", type=float, default=8, help="GiB that a run may take")
    parser.add_argument(
        "--optimizers",
        nargs="+",
        default=["Adam", "SGD"],
        help="each model is run with the first of them for which there is memory",
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> bool:
    """Print the table; tell whether all agree."""
    options = _arguments(arguments)
    models = read_models(options.models)
    chosen = {name: models[name] for name in options.only or models}
    console = Console(width=150, highlight=False, markup=False, emoji=False)
    found = _measure_all(chosen, options, Console(stderr=True, highlight=False, markup=False))
    console.print(_table(found))
    agree = [
        name
        for name, (_, said) in found.items()
        if not isinstance(said, str) and all(one.is_complete for one in said)
    ]
    console.print(f"{len(agree)} of {len(found)} models agree in every block and event")
    return len(agree) == len(found)


if __name__ == "__main__":
    try:
        sys.exit(0 if main(sys.argv[1:]) else 1)
    except InputError as error:
        sys.exit(f"extrapolation: {error.message}")
