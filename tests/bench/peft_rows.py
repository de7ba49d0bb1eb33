"""peft's own comparison of its methods, as job specs: predicted against measured.

The measured jobs are those of ``method_comparison/MetaMathQA`` in huggingface/peft: Llama-3.2-3B
in bfloat16, batches of 4, AdamW, the gradient's norm clipped.

The lengths are one sequence for all rows. They were chosen from what is public about the data,
before any row was compared, and are not changed afterwards:

* the script takes 80 samples at a time, sorts them from long to short and makes 20 batches of 4,
  each padded to its longest; it empties the cache after every tenth step. So the memory that is
  reserved in half of all steps is that of the longest sample of 80, and the 99th percentile of the
  steps is the 98th of the 250 sets of 80: the fifth longest of 20,000 samples;
* texts of more than 1,300 characters are left out. The 0.3 % densest of long mathematical texts
  have about 2.0 characters to a token of Llama 3 (1.97 to 2.28 in solutions of MATH and
  OlympiadBench written by people and by models), so the fifth longest has about 640 tokens with
  the words around the question;
* the other lengths are those of 80 samples with the data's mean of 209 tokens (4,198,051 tokens in
  20,000 samples, as the script reports), taken as log-normal with a deviation of 0.45: the 5th,
  9th, ... longest of 80. Ten batches lie between two calls of ``empty_cache``;
* the longest comes again at the end, when the optimizer has its state.

That the cache is emptied was put into the replay after the first two rows had been seen; no length
was changed. ``docs/accuracy.md`` has the result.

``python -m tests.bench.peft_rows ROWS.csv PEFT``: the measured rows, and a checkout of peft, which
has each adapter's configuration. Nothing of either is kept here.
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.replay import replay
from memgate.errors import InputError, MemgateError
from memgate.gpus import CATALOGUE
from memgate.jobspec import parse_job_spec
from memgate.timeline import EmptyCache, Timeline, TimelineEvent
from memgate.timeline_file.recorded import JobMark
from memgate.units import GIB
from memgate_worker.local import trace_spec

LENGTHS = (640, 389, 333, 299, 275, 255, 239, 224, 211, 200, 640)

#: of an adapter's configuration: what says nothing about the adapter
_NOT_SETTINGS = frozenset(
    {
        *("auto_mapping", "base_model_name_or_path", "inference_mode", "peft_type", "peft_version"),
        *("revision", "task_type"),
    }
)
_GPU = "l40s"
#: steps, in the script
_EMPTIED_AFTER = 10
_FAR = 0.1


class Row(NamedTuple):
    """A measured job."""

    #: as in ``lora/llama-3.2-3B-rank32``
    experiment: str
    torch: str
    optimizer: str
    #: the 99th percentile of the steps
    reserved_gib: float


def read_rows(path: Path) -> list[Row]:
    """Return the rows of Llama-3.2-3B."""
    rows = []
    with path.open(newline="") as stream:
        for row in csv.DictReader(stream):
            name = re.search(r"MetaMathQA/results/(.+?)--(.+)\.json", row["source"])
            measured = re.search(r"p99 train-step reserved ([\d.]+) GiB", row["notes"])
            if name and measured:
                experiment = f"{name[1]}/{name[2]}"
                gib = float(measured[1])
                rows.append(Row(experiment, row["torch_version"], row["optimizer"], gib))
    return rows


def make_spec(experiment: str, checkout: Path) -> dict[str, Any]:
    """Return a measured job as a spec; its adapter is configured in a checkout of peft."""
    folder = checkout / "method_comparison" / "MetaMathQA" / "experiments" / experiment
    settings = json.loads((folder / "adapter_config.json").read_text())
    kwargs = {
        name: value
        for name, value in settings.items()
        if name not in _NOT_SETTINGS and value is not None
    }
    return {
        "model": {"source": "transformers", "name": "meta-llama/Llama-3.2-3B"},
        "input": {"sequence_length": list(LENGTHS)},
        "batch_size": 4,
        "precision": "bf16",
        "optimizer": {"name": "AdamW", "kwargs": {"lr": 1e-4, "weight_decay": 0.1}},
        "clip_grad_norm": 1.0,
        "zero_grad": "iteration_start",
        "lora": {"method": settings["peft_type"].lower(), "kwargs": kwargs},
    }


def predict(experiment: str, checkout: Path) -> float | str:
    """Return what an experiment reserves, in GiB, or why there is no answer."""
    try:
        document = make_spec(experiment, checkout)
        return _run(document)
    except FileNotFoundError:
        return "the checkout has no such experiment"
    except MemgateError as error:
        return error.message


def _run(document: dict[str, Any]) -> float:
    """Return what a job reserves, in GiB; what its peft does not know is left out, as peft does."""
    try:
        traced = trace_spec(parse_job_spec(document), CATALOGUE[_GPU])
    except InputError as error:
        kwargs = document["lora"]["kwargs"]
        unknown = {mistake.field.removeprefix("lora.kwargs.") for mistake in error.mistakes}
        if not unknown & kwargs.keys():
            raise
        for name in unknown:
            del kwargs[name]
        return _run(document)
    timeline = empty_cache_after(traced.timeline, traced.marks, _EMPTIED_AFTER)
    return replay(timeline, parse_alloc_conf(""), 1 << 43).peak_reserved_bytes / GIB


def empty_cache_after(timeline: Timeline, marks: Sequence[JobMark], every: int) -> Timeline:
    """Empty the cache after every so many steps, as the script does and a spec cannot say."""
    begins = {mark.event_index for mark in marks if mark.step and mark.step % every == 0}
    events: list[TimelineEvent] = []
    for at, event in enumerate(timeline.events):
        if at in begins:
            events.append(EmptyCache())
        events.append(event)
    return replace(timeline, events=tuple(events), phases=(), labels=())


def main(path: str, checkout: str) -> None:
    """Print every row, and the figures of all."""
    console = Console(width=160, highlight=False)
    found: dict[str, float | str] = {}
    errors = []
    console.print("| experiment | torch | measured | predicted | error |\n|---|---|---|---|---|")
    rows = read_rows(Path(path))
    for row in rows:
        if row.experiment not in found:
            found[row.experiment] = predict(row.experiment, Path(checkout))
        predicted, said = found[row.experiment], ""
        if not isinstance(predicted, str):
            errors.append(error := predicted / row.reserved_gib - 1)
            said = f"{error:+.1%}{' (far)' if abs(error) > _FAR else ''}"
            predicted = f"{predicted:.2f}"
        cells = [row.experiment, row.torch, f"{row.reserved_gib:.2f}", predicted, said]
        console.print(f"| {' | '.join(cells)} |", markup=False)
    sizes = sorted(map(abs, errors))
    p90 = sizes[min(len(sizes) - 1, int(0.9 * len(sizes)))]
    console.print(f"{len(sizes)} of {len(rows)} rows: median {median(sizes):.1%}, p90 {p90:.1%}")


if __name__ == "__main__":
    main(*sys.argv[1:])
