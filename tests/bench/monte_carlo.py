"""Asks engines about random jobs, and holds them against each other: ``make monte-carlo``.

As in the xMem paper: a model, an optimizer, a batch size, a place of ``zero_grad`` and a GPU are
drawn for each of 1,680 jobs. Nobody ran these jobs, so the first engine stands for what happened.
Each job is drawn from the seed and its number alone, and what was said of it is kept as a line of a
file, so that a run that was interrupted goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from memgate.accuracy import truth_job
from memgate.decision import Decision
from memgate.errors import InputError, MemgateError
from memgate.evaluation.equations import ERROR_WEIGHT, FAILURE_WEIGHT
from memgate.evaluation.markdown import number, percent, table
from memgate.gpus import GpuTarget, find_gpu
from memgate_worker.local import check_engine, estimate_spec
from memgate_worker.runtimes.runtime import find_runtime

JOBS = 1680
OPTIMIZERS = ("SGD", "Adam", "AdamW", "RMSprop", "Adagrad")
GPUS = ("rtx-3060", "rtx-4060")
#: the largest batch: of images as in the paper, of sequences what its authors tried
MOST_IMAGES, MOST_SEQUENCES = 1000, 60
#: start of the iteration, and right before the backward pass
ZERO_GRAD = ("0", "1")

ENGINES = ("phantom", "dnnmem", "schedtune", "horus", "accelerate", "deepspeed", "rule-of-thumb")

#: what an engine said: its decision and the peak of reserved memory; or why it has no answer
Said = Mapping[str, Any]


def draw_job(seed: int, place: int, models: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is drawn for a job: the same for the same seed and number."""
    chance = Random(f"{seed} {place}")
    model = chance.choice(sorted(models))
    is_language_model = models[model]["source"] == "transformers"
    return {
        "number": place,
        "model": model,
        "optimizer": chance.choice(OPTIMIZERS),
        "batch_size": chance.randint(1, MOST_SEQUENCES if is_language_model else MOST_IMAGES),
        "zero_grad_mode": chance.choice(ZERO_GRAD),
        "gpu": chance.choice(GPUS),
    }


def read_lines(path: Path) -> dict[int, dict[str, Any]]:
    """Read what was said before, by number; a line that was cut off is asked again."""
    found = {}
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            said = json.loads(line)
        except json.JSONDecodeError:
            continue
        found[said["number"]] = said
    return found


def ask(
    drawn: Mapping[str, Any], model: Mapping[str, Any], engines: Sequence[str], runtime: str
) -> dict[str, Any]:
    """Ask all engines about a job."""
    job = truth_job(
        model,
        batch_size=drawn["batch_size"],
        optimizer=drawn["optimizer"],
        zero_grad_mode=drawn["zero_grad_mode"],
    )
    target = GpuTarget(gpu=find_gpu(drawn["gpu"]))
    said: dict[str, Any] = {}
    for engine in engines:
        try:
            answer = estimate_spec(job, target, engine=engine, runtime=runtime).estimate
        except MemgateError as error:
            said[engine] = {"error": error.message}
        else:
            said[engine] = {
                "decision": answer.decision.value,
                "peak": answer.peak_reserved_bytes,
            }
    return {**drawn, "said": said}


def compare(lines: Iterable[Mapping[str, Any]], engine: str, reference: str) -> list[str]:
    """Return an engine's cells, with the reference for what happened."""
    pairs = [(line["said"].get(engine, {}), line["said"].get(reference, {})) for line in lines]
    both = [(said, real) for said, real in pairs if "peak" in said and "peak" in real]
    errors = [abs(said["peak"] - real["peak"]) / real["peak"] for said, real in both]
    decided = [
        (said, real)
        for said, real in both
        if Decision.UNCERTAIN.value not in (said["decision"], real["decision"])
    ]
    wrong = sum(said["decision"] != real["decision"] for said, real in decided)
    failure = wrong / len(decided) if decided else None
    error = median(errors) if errors else None
    score = None
    if failure is not None and error is not None:
        score = FAILURE_WEIGHT * failure + ERROR_WEIGHT * error
    false_admits = sum(
        said["decision"] == Decision.ADMIT.value != real["decision"] for said, real in decided
    )
    return [
        *(engine, str(len(both)), percent(error, 2), str(len(decided)), percent(failure)),
        *(str(false_admits), str(wrong - false_admits), number(score, 3)),
    ]


def write_table(lines: Sequence[Mapping[str, Any]], engines: Sequence[str]) -> str:
    """Return the engines against the first of them, as Markdown."""
    head = (
        *("engine", "jobs", "median difference", "decided", "decided otherwise"),
        *("admits what it rejects", "rejects what it admits", "score"),
    )
    rows = [compare(lines, engine, engines[0]) for engine in engines]
    return "\n".join(table(head, rows))


def main(arguments: Sequence[str]) -> None:
    """Ask about what is missing, and print the table."""
    parser = argparse.ArgumentParser(prog="make monte-carlo", description=__doc__)
    parser.add_argument("models", type=Path, help="JSON: model name to job spec")
    parser.add_argument("--output", type=Path, default=Path("build/monte-carlo.jsonl"))
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runtime")
    parser.add_argument("--engine", action="append", help="the first stands for what happened")
    asked = parser.parse_args(arguments)
    engines = asked.engine or [*ENGINES]
    for engine in engines:
        check_engine(engine)
    models = json.loads(asked.models.read_text())
    runtime = find_runtime(asked.runtime).name
    known = read_lines(asked.output)
    drawn = [draw_job(asked.seed, place, models) for place in range(asked.jobs)]
    missing = [one for one in drawn if not _is_known(one, known, engines)]
    asked.output.parent.mkdir(parents=True, exist_ok=True)
    with (
        ProcessPoolExecutor(os.cpu_count()) as pool,
        asked.output.open("a", buffering=1) as file,
    ):
        jobs = [pool.submit(ask, one, models[one["model"]], engines, runtime) for one in missing]
        for job in as_completed(jobs):
            line = job.result()
            known[line["number"]] = line
            file.write(f"\n{json.dumps(line)}")
    print(write_table([known[one["number"]] for one in drawn], engines))  # noqa: T201


def _is_known(
    drawn: Mapping[str, Any], known: Mapping[int, Mapping[str, Any]], engines: Sequence[str]
) -> bool:
    """Say whether all engines were asked about this very job before."""
    line = known.get(drawn["number"], {})
    same = all(line.get(name) == value for name, value in drawn.items())
    return same and set(engines) <= line["said"].keys()


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (InputError, OSError) as error:
        sys.exit(f"monte-carlo: {error}")
