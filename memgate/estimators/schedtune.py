"""SchedTune: a regressor over what is known of a model, a batch and a GPU.

Albahar et al., "SchedTune: A Heterogeneity-Aware GPU Scheduler for Deep Learning" (CCGrid 2022).
The source's regressor was trained on its authors' runs; this one is a ridge regression of the
logarithm of the measured peak, trained on the runs of docs/accuracy.md. For a model that is among
them, the weights are those found without any of its runs, so every answer is for a model not seen.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from math import exp, log

from memgate.estimators.about import Baseline
from memgate.estimators.facts import JobFacts
from memgate.estimators.parts import count_states, hold
from memgate.estimators.schedtune_weights import WEIGHTS, WEIGHTS_WITHOUT
from memgate.jobspec import JobSpec
from memgate.timeline import Category, Timeline

_DIGITS = 12


def find_features(job: JobSpec, facts: JobFacts) -> list[float]:
    """Return what the regressor sees of a job; the first is constant."""
    return [
        1.0,
        log(1 + facts.num_parameters),
        log(1 + facts.activation_bytes),
        log(job.batch_size),
        log(1 + facts.num_layers),
        log(1 + len(facts.operators)),
        float(count_states(job)),
        float(bool(job.input.sequence_length)),
    ]


def name_model(job: JobSpec) -> str:
    """Return a short name of a job's model, the same for all of its jobs."""
    return hashlib.sha256(job.model.model_dump_json().encode()).hexdigest()[:_DIGITS]


def predict_peak(features: Sequence[float], weights: Sequence[float]) -> float:
    """Return the bytes that the regressor says."""
    return exp(sum(one * weight for one, weight in zip(features, weights, strict=True)))


def estimate(job: JobSpec, facts: JobFacts) -> Timeline:
    """Ask the regressor."""
    weights = WEIGHTS_WITHOUT.get(name_model(job), WEIGHTS)
    return hold({Category.OTHER: predict_peak(find_features(job, facts), weights)})


SCHEDTUNE = Baseline(
    name="schedtune",
    source="Albahar et al., CCGrid 2022",
    published="errors up to 387 % with SGD and 278 % with Adam, measured by the authors of xMem",
    limits="a ridge regression of ours, trained on 17 models; neither FLOPs nor the GPU are among"
    " its features",
    estimate=estimate,
)
