"""Holds answers about fine-tuning jobs against what others measured on real GPUs.

``make public-rows PUBLIC=DIR`` reads ``fms_acceleration.csv`` of a folder: one run per row, with
its model, batch, method, versions and peak of allocated memory. Used are runs on one GPU, and on
several with FSDP, that trained with nothing but trl, peft and bitsandbytes. Each becomes a job
spec, and is run with an installed runtime of the versions that it was measured with; without one
the row is skipped, and what to install is printed. Rows whose lengths of text vary are skipped:
nothing says what they were.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import re
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from memgate.decision import Decision
from memgate.errors import InputError, MemgateError
from memgate.gpus import GpuTarget, find_gpu
from memgate.jobspec import JobSpec, parse_job_spec
from memgate.units import GIB
from memgate_worker.engines.phantom.engine import PhantomEngine
from memgate_worker.limits import RunLimits
from memgate_worker.runtimes.runtime import Runtime, read_runtimes
from memgate_worker.verdicts import answer_run

FILE = "fms_acceleration.csv"

#: what is said in the notes of a row -> what the package is called
_PACKAGES = {
    "transformers": "transformers",
    "trl": "trl",
    "peft": "peft",
    "accelerate": "accelerate",
    "bnb": "bitsandbytes",
}
#: which of them a runtime must have in the very version
_DECISIVE = ("torch", "transformers")

#: of frameworks beside transformers' own
_PLAIN = re.compile(r"framework_config=(none|baseline-peft-bnb)$")
_ADAPTER = re.compile(r"lora r=(\d+)\S* target=([\w ]+?)(?: all-linear)?;")
_LENGTH = re.compile(r"(\d+) tokens \(packed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A run that was measured."""

    title: str
    job: JobSpec
    versions: dict[str, str]
    #: the most that was allocated at once; None: it did not finish
    measured_gib: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What memgate says about it."""

    row: Row
    runtime: str
    allocated_gib: float
    decision: Decision
    seconds: float

    @property
    def error(self) -> float | None:
        """Relative to what was measured."""
        measured = self.row.measured_gib
        return None if measured is None else self.allocated_gib / measured - 1


def read_rows(folder: Path, models: Mapping[str, Any]) -> Iterator[Row | str]:
    """Yield the rows that can be rebuilt, and why others cannot.

    Raises:
        InputError: if the file is not there.
    """
    try:
        with (folder / FILE).open(newline="") as file:
            found = list(csv.DictReader(file))
    except OSError as error:
        raise InputError(f"{error}; give its folder with: make public-rows PUBLIC=DIR") from None
    for row in found:
        is_divided = row["world_size"] != "1" and "FSDP FULL_SHARD" in row["notes"]
        if (row["world_size"] == "1" or is_divided) and _PLAIN.search(row["method"]):
            yield _read_row(row, found, models)


def _read_row(
    row: Mapping[str, str], rows: Iterable[Mapping[str, str]], models: Mapping[str, Any]
) -> Row | str:
    title = f"{row['model']}, {row['batch_size']} x {row['seq_or_image'][:40]}, {row['method']}"
    if row["measure_kind"] not in ("allocated", "oom"):
        return f"{title}: {row['measure_kind']} was measured, not what was allocated"
    length = _LENGTH.search(row["seq_or_image"])
    if length is None and row["measure_kind"] == "oom":  # as in the rows beside it
        length = next(
            (one for other in rows if (one := _LENGTH.search(other["seq_or_image"]))), None
        )
    if length is None:
        return f"{title}: the lengths of its texts vary, and are not known"
    try:
        job = parse_job_spec(_describe(row, int(length[1]), models))
    except InputError as error:
        return f"{title}: {error.message}"
    said = dict(re.findall(r"([\w-]+) (\d[\w.]*)", row["notes"].rpartition("; ")[2]))
    versions = {package: said[name] for name, package in _PACKAGES.items() if name in said}
    is_finished = row["measure_kind"] == "allocated"
    return Row(
        title=f"{row['model']}, {row['batch_size']} x {length[1]}, {_name_method(job)}"
        f", {row['world_size']} GPUs",
        job=job,
        versions={"torch": row["torch_version"], **versions},
        measured_gib=float(row["measured_gib"]) if is_finished else None,
    )


def _describe(row: Mapping[str, str], length: int, models: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job spec of a row."""
    weights, _, arithmetic = row["precision"].partition("; ")
    is_cast = "autocast" in arithmetic and "no autocast" not in arithmetic
    short = "bf16" if weights.startswith("bfloat16") else "fp16"
    job: dict[str, Any] = {
        "model": models.get(row["model"], {"source": "transformers", "name": row["model"]}),
        "input": {"sequence_length": length},
        "batch_size": int(row["batch_size"]),
        "trainer": "trl-sft",
        "packing": True,
        "precision": f"amp-{short}" if is_cast else short,
        "gradient_checkpointing": "gradient_checkpointing=True" in row["notes"],
    }
    if row["world_size"] != "1":
        job["distributed"] = {"strategy": "fsdp", "world_size": int(row["world_size"])}
    if adapter := _ADAPTER.search(row["method"]):
        job["lora"] = {"rank": int(adapter[1]), "target_modules": adapter[2].split()}
    if "nf4" in weights:
        # That scales are quantised, too, shows in what is left at the end of these runs.
        job["quantization"] = {"method": "nf4", "compute": short, "double": True}
    return job


def _name_method(job: JobSpec) -> str:
    adapter = "full" if job.lora is None else f"LoRA r={job.lora.rank}"
    return adapter if job.quantization is None else f"{adapter}, {job.quantization.method}"


def find_runtime_of(versions: Mapping[str, str]) -> Runtime | None:
    """Return an installed runtime of the decisive versions."""
    for runtime in read_runtimes().values():
        if runtime.is_installed and all(
            _installed(runtime, package) == versions[package] for package in _DECISIVE
        ):
            return runtime
    return None


def _installed(runtime: Runtime, package: str) -> str:
    found = distributions(name=package, path=[str(runtime.site_packages)])
    return next((one.version for one in found), "")


def _ask(rows: Sequence[Row], forced: str | None, console: Console) -> Iterator[Answer]:
    gpu = find_gpu("a100-80")
    by_runtime: dict[str, list[Row]] = {}
    for row in rows:
        runtime = read_runtimes()[forced] if forced else find_runtime_of(row.versions)
        if runtime is None:
            wanted = " ".join(f"{name}=={version}" for name, version in row.versions.items())
            console.print(f"skipped {row.title}: no runtime of {wanted}")
            continue
        by_runtime.setdefault(runtime.name, []).append(row)
    for name, chosen in by_runtime.items():
        with PhantomEngine(read_runtimes()[name]) as engine:
            for row in chosen:
                start = time.perf_counter()
                try:
                    traced = engine.trace(row.job, gpu, limits=RunLimits(seconds=900))
                except MemgateError as error:
                    console.print(f"no answer for {row.title}: {error.message}")
                    continue
                answered = answer_run(traced, GpuTarget(gpu=gpu))
                said = answered.estimate
                peak = answered.needs.ample.stats.memory_stats()["allocated_bytes.all.peak"]
                answer = Answer(
                    row=row,
                    runtime=name,
                    allocated_gib=peak / GIB,
                    decision=said.decision,
                    seconds=time.perf_counter() - start,
                )
                console.print(f"{row.title}: {answer.allocated_gib:.3f} GiB, {row.measured_gib}")
                yield answer


def _table(answers: Sequence[Answer]) -> Table:
    table = Table("job", "measured", "ours", "error", "decision", "runtime", "seconds")
    for one in answers:
        measured = one.row.measured_gib
        table.add_row(
            one.row.title,
            "did not finish" if measured is None else f"{measured:.3f}",
            f"{one.allocated_gib:.3f}",
            "" if one.error is None else f"{one.error:+.2%}",
            one.decision.value,
            one.runtime,
            f"{one.seconds:.0f}",
        )
    return table


def main(arguments: Sequence[str]) -> None:
    """Print a table, the median and the 90th percentile of the errors."""
    parser = argparse.ArgumentParser(prog="make public-rows", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--models", type=Path, help="JSON: models that have no name here")
    parser.add_argument("--runtime", help="run all with it, whatever they were measured with")
    parser.add_argument("--only", default="", help="rows whose title contains it")
    options = parser.parse_args(arguments)
    models = json.loads(options.models.read_text()) if options.models else {}
    console = Console(width=160, highlight=False, markup=False, emoji=False)
    rows = []
    for row in read_rows(options.folder, models):
        if isinstance(row, str):
            console.print(f"skipped {row}")
        elif options.only in row.title:
            rows.append(row)
    answers = list(_ask(rows, options.runtime, console))
    console.print(_table(answers))
    errors = sorted(abs(one.error) for one in answers if one.error is not None)
    if errors:
        most = errors[math.ceil(0.9 * len(errors)) - 1]
        console.print(f"{len(errors)} rows: median {median(errors):.2%}, p90 {most:.2%}")
    lost = [one for one in answers if one.error is None]
    rejected = sum(one.decision is Decision.REJECT for one in lost)
    console.print(f"{rejected} of {len(lost)} that did not finish are rejected")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except InputError as error:
        sys.exit(f"public-rows: {error.message}")
