"""Trains the regressor of ``--engine schedtune``: ``make schedtune PEAKS=peaks.csv``.

A ridge regression of the logarithm of the measured peak, on runs that did not run out of memory,
once on all of them and once without each model. The weights go to ``schedtune_weights.py``.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
from collections.abc import Sequence
from math import log
from pathlib import Path

import numpy as np

from memgate.accuracy import MeasuredRun, gpu_of, read_measured_runs
from memgate.errors import MemgateError
from memgate.estimators import ESTIMATORS
from memgate.estimators.facts import JobFacts
from memgate.estimators.schedtune import find_features, name_model
from memgate_worker.engines.estimators.engine import EstimatorEngine
from memgate_worker.runtimes.runtime import find_runtime

PLACE = Path(__file__).parents[2] / "memgate" / "estimators" / "schedtune_weights.py"

#: of the ridge, on features that were scaled to a deviation of one
PENALTY = 1.0

HEAD = '''"""Weights of ``schedtune``: ``make schedtune PEAKS=peaks.csv`` writes this file."""

from __future__ import annotations

#: of all runs, one for each feature
WEIGHTS: tuple[float, ...] = {}

#: without the runs of a model, by its short name
WEIGHTS_WITHOUT: dict[str, tuple[float, ...]] = {{
{}}}
'''


def fit(features: Sequence[Sequence[float]], peaks: Sequence[float]) -> tuple[float, ...]:
    """Return the weights of a ridge regression of the logarithm of peaks; the first is free."""
    table = np.array(features)[:, 1:]
    middle, spread = table.mean(axis=0), table.std(axis=0)
    spread[spread == 0] = 1.0
    scaled = (table - middle) / spread
    wanted = np.array([log(peak) for peak in peaks])
    square = scaled.T @ scaled + PENALTY * np.eye(scaled.shape[1])
    slopes = np.linalg.solve(square, scaled.T @ (wanted - wanted.mean())) / spread
    first = wanted.mean() - middle @ slopes
    return tuple(round(float(one), 6) for one in (first, *slopes))


def describe(runs: Sequence[MeasuredRun], runtime: str | None) -> list[JobFacts]:
    """Describe the job of each run."""
    with EstimatorEngine(ESTIMATORS["horus"], find_runtime(runtime)) as engine:
        return [engine.describe(run.spec, gpu_of(run)) for run in runs]


def write(runs: Sequence[MeasuredRun], facts: Sequence[JobFacts]) -> str:
    """Return the file."""
    known = [
        (name_model(run.spec), find_features(run.spec, one), run.measured_bytes)
        for run, one in zip(runs, facts, strict=True)
    ]
    names = sorted({name for name, *_ in known})

    def train(without: str) -> tuple[float, ...]:
        kept = [(found, peak) for name, found, peak in known if name != without]
        return fit([found for found, _ in kept], [peak for _, peak in kept])

    lines = [f'    "{name}": {train(name)},\n' for name in names]
    return HEAD.format(train(""), "".join(lines))


def main(arguments: Sequence[str]) -> None:
    """Describe the jobs, train, write."""
    parser = argparse.ArgumentParser(prog="make schedtune", description=__doc__)
    parser.add_argument("peaks", type=Path, help="measured runs, models.json beside it")
    parser.add_argument("--runtime", help="library versions to describe jobs with")
    asked = parser.parse_args(arguments)
    rows = list(csv.DictReader(asked.peaks.read_text().splitlines()))
    models = json.loads(asked.peaks.with_name("models.json").read_text())
    runs = [run for run in read_measured_runs(rows, [], models) if not run.ran_out]
    PLACE.write_text(write(runs, describe(runs, asked.runtime)))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except (MemgateError, OSError) as error:
        sys.exit(f"schedtune: {error}")
