"""peft's own comparison of its methods, as job specs: predicted against measured.

The measured jobs are those of ``method_comparison/MetaMathQA`` in huggingface/peft: Llama-3.2-3B
in bfloat16, batches of 4, AdamW, the gradient's norm clipped. The lengths are one sequence for all
rows (``tests.bench.peft_lengths``). A row is run with an installed runtime of its torch and
transformers; without one it is skipped.

The script empties the allocator's cache, which a spec cannot say, so that is put into the replay:
after every tenth step in runs since 13 November 2025 (peft's commit 90d3fc05), and after every
step in older ones, where it explains a difference of 2.2 GiB between runs of the same versions.

``python -m tests.bench.peft_rows ROWS.csv PEFT``: the measured rows, and a git directory of peft,
which has each adapter's configuration. Nothing of either is kept here.
"""

from __future__ import annotations

import argparse
import csv
import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.replay import replay
from memgate.errors import InputError, MemgateError
from memgate.gpus import find_gpu
from memgate.jobspec import parse_job_spec
from memgate.timeline import EmptyCache, Timeline, TimelineEvent
from memgate.timeline_file.recorded import JobMark
from memgate.units import GIB, MIB
from memgate_worker.engines.phantom.engine import PhantomEngine
from memgate_worker.engines.traced import TracedJob
from memgate_worker.limits import RunLimits
from memgate_worker.runtimes.runtime import Runtime
from tests.bench.peft_lengths import GROUP, LENGTHS
from tests.bench.public_rows import find_runtime_of

#: of an adapter's configuration: what says nothing about the adapter
_NOT_SETTINGS = frozenset(
    {
        *("auto_mapping", "base_model_name_or_path", "inference_mode", "peft_type", "peft_version"),
        *("revision", "task_type"),
    }
)
_FOLDER = "method_comparison/MetaMathQA/experiments"
_GPU = "l40s"
#: the first day on which the cache was emptied after every tenth step only
_RARELY_EMPTIED = "2025-11-13"
#: since then the script switches adapters off and on before it trains, which undoes what LoRA-FA
#: froze: its first matrices get gradients that no one uses
_UNFREEZES = "2026-07-14"
#: what the script finds reserved before it begins, and subtracts
_BEFORE = 2 * MIB
_FAR = 0.1
_AMPLE = 1 << 43


class Row(NamedTuple):
    """A measured job."""

    #: as in ``lora/llama-3.2-3B-rank32``
    experiment: str
    #: of peft, with the result
    commit: str
    versions: dict[str, str]
    #: such as 2025-10-23
    day: str
    #: the 99th percentile of the steps
    reserved_gib: float

    @property
    def emptied_after(self) -> int:
        """Steps between two calls of ``empty_cache``."""
        return GROUP if self.day >= _RARELY_EMPTIED else 1


class Answer(NamedTuple):
    """What memgate says about it."""

    reserved_gib: float
    #: the most that is allocated at once in the step that decides
    allocated_gib: float


def read_rows(path: Path) -> Iterator[Row]:
    """Yield the rows of Llama-3.2-3B."""
    with path.open(newline="") as stream:
        for row in csv.DictReader(stream):
            name = re.search(r"@(\w+):.*MetaMathQA/results/(.+?)--(.+)\.json", row["source"])
            if name is None:
                continue
            notes = dict(re.findall(r"(transformers|peft|run) ([\w.-]+)", row["notes"]))
            measured = re.search(r"p99 train-step reserved ([\d.]+) GiB", row["notes"])
            assert measured is not None, row["notes"]
            torch = row["torch_version"].partition("+")[0]
            yield Row(
                experiment=f"{name[2]}/{name[3]}",
                commit=name[1],
                versions={"torch": torch, **{one: notes[one] for one in ("transformers", "peft")}},
                day=notes["run"],
                reserved_gib=float(measured[1]),
            )


def make_spec(row: Row, peft: Path) -> dict[str, Any]:
    """Return a measured job as a spec; its adapter is configured in peft's repository."""
    settings = _read(row, peft, "adapter_config.json")
    training = _read(row, peft, "training_params.json", optional=True)
    optimizer = {"name": "AdamW", "kwargs": {"lr": 1e-4, "weight_decay": 0.1}}
    if training.get("optimizer_type") == "lora-fa" and row.day < _UNFREEZES:
        optimizer = {"name": "peft.LoraFAOptimizer", "kwargs": {"weight_decay": 0.1}}
    kwargs = {
        name: value
        for name, value in settings.items()
        if name not in _NOT_SETTINGS and value is not None
    }
    if not training.get("autocast_adapter_dtype", True):
        kwargs["autocast_adapter_dtype"] = False
    return {
        "model": {"source": "transformers", "name": "meta-llama/Llama-3.2-3B"},
        "input": {"sequence_length": list(LENGTHS)},
        "batch_size": 4,
        "precision": "bf16",
        "optimizer": optimizer,
        "clip_grad_norm": 1.0,
        "zero_grad": "iteration_start",
        "lora": {"method": settings["peft_type"].lower(), "kwargs": kwargs},
    }


def _read(row: Row, peft: Path, name: str, *, optional: bool = False) -> dict[str, Any]:
    """Return a file of an experiment, as it was when its result was added."""
    place = f"{row.commit}:{_FOLDER}/{row.experiment}/{name}"
    command = ["git", "-C", str(peft), "show", place]
    said = subprocess.run(command, check=not optional, capture_output=True)
    found: dict[str, Any] = json.loads(said.stdout or b"{}")
    return found


class Bench:
    """Asks a runtime's engine about rows; the same job is run once."""

    def __init__(self, engine: PhantomEngine, peft: Path) -> None:
        self._engine = engine
        self._peft = peft
        self._answers: dict[str, dict[int, Answer] | str] = {}

    def predict(self, row: Row) -> Answer | str:
        """Return what an experiment reserves, or why there is no answer."""
        document = make_spec(row, self._peft)
        key = json.dumps(document)
        if key not in self._answers:
            try:
                traced = _trace(document, self._engine)
                self._answers[key] = {every: judge(traced, every) for every in (1, GROUP)}
            except MemgateError as error:
                self._answers[key] = error.message
        found = self._answers[key]
        return found if isinstance(found, str) else found[row.emptied_after]


def judge(traced: TracedJob, emptied_after: int) -> Answer:
    """Return what a run reserves in the step that decides."""
    at_ends = reserved_at_ends(traced, emptied_after)
    deciding = at_ends[GROUP : 2 * GROUP] if emptied_after == GROUP else at_ends[2 * GROUP :]
    allocated = max(allocated for _, allocated in deciding)
    return Answer((deciding[-1][0] - _BEFORE) / GIB, allocated / GIB)


def _trace(document: dict[str, Any], engine: PhantomEngine) -> TracedJob:
    """Run a job; what its peft does not know is left out, as peft does."""
    try:
        job = parse_job_spec(document)
        return engine.trace(job, find_gpu(_GPU), limits=RunLimits(seconds=900))
    except InputError as error:
        kwargs = document["lora"]["kwargs"]
        unknown = {mistake.field.removeprefix("lora.kwargs.") for mistake in error.mistakes}
        if not unknown & kwargs.keys():
            raise
        for name in unknown:
            del kwargs[name]
        return _trace(document, engine)


def reserved_at_ends(traced: TracedJob, emptied_after: int) -> list[tuple[int, int]]:
    """Return what is reserved at the end of each step, and the most that is allocated in it."""
    steps = [mark.event_index for mark in traced.marks if mark.step is not None]
    timeline, begins = empty_cache_after(traced.timeline, traced.marks, emptied_after)
    done = replay(timeline, parse_alloc_conf(""), _AMPLE)
    assert len(begins) == len(steps) == len(LENGTHS), (len(begins), len(LENGTHS))
    found = []
    changes = iter([*done.reserved_changes, None])
    change, reserved = next(changes), 0
    for begin, end in zip(begins, [*begins[1:], len(timeline.events)], strict=True):
        # the event before the next step is the call that empties
        is_emptied = end < len(timeline.events) and isinstance(timeline.events[end - 1], EmptyCache)
        until = end - 1 if is_emptied else end
        while change is not None and change.event_index < until:
            reserved = change.reserved_bytes
            change = next(changes)
        found.append((reserved, max(done.allocated_series[begin:until])))
    return found


def empty_cache_after(
    timeline: Timeline, marks: Sequence[JobMark], every: int
) -> tuple[Timeline, list[int]]:
    """Empty the cache after every so many steps; return where each step then begins, too."""
    begins = {mark.event_index: mark.step for mark in marks if mark.step is not None}
    events: list[TimelineEvent] = []
    moved = []
    for at, event in enumerate(timeline.events):
        step = begins.get(at)
        if step is not None:
            if step and step % every == 0:
                events.append(EmptyCache())
            moved.append(len(events))
        events.append(event)
    return replace(timeline, events=tuple(events), phases=(), labels=()), moved


def by_runtime(rows: Sequence[Row]) -> Mapping[str, tuple[Runtime, list[Row]]]:
    """Return the rows that can be run, by the name of the runtime that has their versions."""
    found: dict[str, tuple[Runtime, list[Row]]] = {}
    for row in rows:
        runtime = find_runtime_of(row.versions)
        if runtime is not None:
            found.setdefault(runtime.name, (runtime, []))[1].append(row)
    return found


def main() -> None:
    """Print every row, and the figures of all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("rows", type=Path)
    parser.add_argument("peft", type=Path, help="a git directory of huggingface/peft")
    parser.add_argument("--only", default="", help="a pattern of experiments")
    parser.add_argument("--torch", default="", help="rows that were measured with it")
    options = parser.parse_args()
    console = Console(width=200, highlight=False, markup=False, emoji=False)
    rows = [
        row
        for row in read_rows(options.rows)
        if re.search(options.only, row.experiment)
        and row.versions["torch"].startswith(options.torch)
    ]
    console.print("| experiment | runtime | run | measured | reserved | allocated | error |")
    errors = []
    for name, (runtime, chosen) in by_runtime(rows).items():
        with PhantomEngine(runtime) as engine:
            bench = Bench(engine, options.peft)
            for row in chosen:
                answer = bench.predict(row)
                cells = [row.experiment, name, row.day, f"{row.reserved_gib:.2f}"]
                if isinstance(answer, str):
                    console.print(f"| {' | '.join([*cells, answer])} |")
                    continue
                errors.append(error := answer.reserved_gib / row.reserved_gib - 1)
                said = f"{error:+.1%}{' (far)' if abs(error) > _FAR else ''}"
                cells += [f"{answer.reserved_gib:.2f}", f"{answer.allocated_gib:.2f}", said]
                console.print(f"| {' | '.join(cells)} |")
    if errors:
        sizes = sorted(map(abs, errors))
        p90 = sizes[ceil(0.9 * len(sizes)) - 1]
        said = f"median {median(sizes):.1%}, p90 {p90:.1%}"
        console.print(f"{len(sizes)} of {len(rows)} rows: {said}")


if __name__ == "__main__":
    main()
