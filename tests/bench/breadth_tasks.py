"""Asks about every trainable model of the installed libraries, each made small.

``make breadth-tasks`` runs it and prints, for each library, how many models are answered, how many
are refused as not supported, and how many fail in another way. What is answered is kept in a file,
so that a second run asks again only about the rest; ``--afresh`` forgets it, ``--match PATTERN``
asks about the models whose names match.

Some models cannot be trained as they come: the library cannot build them with their defaults, looks
for another library, or gives them no forward. They are counted apart.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from memgate.errors import Fault, MemgateError
from memgate.gpus import find_gpu
from memgate.jobspec import parse_job_spec
from memgate_worker.engines.host_client import host_environment
from memgate_worker.engines.registry import AutoEngine, Engine
from memgate_worker.limits import RunLimits
from memgate_worker.runtimes.runtime import Runtime, find_runtime

LIBRARIES = ("transformers", "torchvision", "timm", "diffusers")
ANSWERS = Path("build/breadth-tasks.json")
ANSWERED = "answered"
_GPU = find_gpu("h200")
_LIMITS = RunLimits(seconds=120.0)
_KEEP_EVERY = 20

#: what is said of a model that nobody can train as it comes
_CANNOT_BE_TRAINED = (
    "with the configuration that it has by default",
    "needs something that this runtime lacks",
    "it has no forward",
    "has not been implemented yet",
)

#: model -> how it was answered: the word, or the fault and the message
Answers = dict[str, str]


def list_jobs(
    runtime: Runtime, library: str, chosen: Sequence[str] = ()
) -> dict[str, list[dict[str, Any]]]:
    """Return the jobs of a library, as the runtime's own installation has it."""
    program = "diffusion_jobs.py" if library == "diffusers" else "task_jobs.py"
    listed = subprocess.run(
        [runtime.python, Path(__file__).with_name(program), library, *chosen],
        env=host_environment(runtime),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    jobs: dict[str, list[dict[str, Any]]] = json.loads(listed.stdout)
    return jobs


def ask(engine: Engine, specs: list[dict[str, Any]]) -> str:
    """Ask about a model in one size after the other, until one is answered.

    If none is, the first that could be built says why: later ones differ in what does not matter.
    """
    said = []
    for spec in specs:
        try:
            engine.trace(parse_job_spec(spec), _GPU, limits=_LIMITS)
        except MemgateError as error:
            said.append(f"{error.fault}: {error.message}")
        else:
            return ANSWERED
    return next((one for one in said if one.startswith(f"{Fault.UNSUPPORTED}:")), said[0])


def ask_all(
    runtime: Runtime, library: str, answers: Answers, match: re.Pattern[str]
) -> Iterator[None]:
    """Ask about the models that match and are not answered yet; yields after each."""
    jobs = list_jobs(runtime, library)
    with AutoEngine(runtime) as engine:
        for name, specs in jobs.items():
            if answers.get(name) != ANSWERED and match.search(name):
                answers[name] = ask(engine, specs)
                yield
    for gone in answers.keys() - jobs.keys():
        del answers[gone]


def show(answers: dict[str, Answers]) -> Table:
    """Return the table of libraries."""
    table = Table(
        *("library", "models", "answered", "unsupported", "failed", "share answered"),
        *("cannot be trained", "share of the others"),
    )
    for library, said in answers.items():
        answered = sum(one == ANSWERED for one in said.values())
        unsupported = sum(one.startswith(f"{Fault.UNSUPPORTED}:") for one in said.values())
        failed = len(said) - answered - unsupported
        broken = sum(any(why in one for why in _CANNOT_BE_TRAINED) for one in said.values())
        table.add_row(
            *(library, str(len(said)), str(answered), str(unsupported), str(failed)),
            *(_share(answered, len(said)), str(broken), _share(answered, len(said) - broken)),
        )
    return table


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.1%}" if whole else ""


def main() -> None:
    """Ask, print the table, and what failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("libraries", nargs="*", default=LIBRARIES, choices=[*LIBRARIES, []])
    parser.add_argument("--runtime", default="torch-2.14")
    parser.add_argument("--afresh", action="store_true")
    parser.add_argument("--match", metavar="PATTERN", default=re.compile(""), type=re.compile)
    chosen = parser.parse_args()
    answers: dict[str, Answers] = {}
    if ANSWERS.exists() and not chosen.afresh:
        answers = json.loads(ANSWERS.read_text())
    ANSWERS.parent.mkdir(exist_ok=True)
    runtime = find_runtime(chosen.runtime)
    console = Console()
    for library in chosen.libraries:
        said = answers.setdefault(library, {})
        for number, _ in enumerate(ask_all(runtime, library, said, chosen.match), start=1):
            if number % _KEEP_EVERY == 0:
                ANSWERS.write_text(json.dumps(answers, indent=1))
                console.print(f"{library}: asked about {number}", highlight=False)
        ANSWERS.write_text(json.dumps(answers, indent=1))
    console.print(show(answers))
    console.print(f"each model, and why it is not answered: {ANSWERS}")
    sys.exit(0)


if __name__ == "__main__":
    main()
