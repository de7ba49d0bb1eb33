"""Horus: weights, gradients and activations, in one formula.

Yeung et al., "Horus: Interference-Aware and Prediction-Based Scheduling in Deep Learning Systems"
(IEEE TPDS 2022): four bytes for each activation of the batch, each gradient and each parameter,
and what the framework takes at its start, which is the context here.
"""

from __future__ import annotations

from memgate.estimators.about import Baseline
from memgate.estimators.facts import JobFacts
from memgate.estimators.parts import hold
from memgate.jobspec import JobSpec
from memgate.timeline import Category, Timeline


def estimate(_: JobSpec, facts: JobFacts) -> Timeline:
    """Add the three up."""
    return hold(
        {
            Category.PARAMETERS: facts.weight_bytes,
            Category.GRADIENTS: facts.trained_bytes,
            Category.ACTIVATIONS: facts.activation_bytes,
        }
    )


HORUS = Baseline(
    name="horus",
    source="Yeung et al., IEEE TPDS 2022",
    published="none known here",
    limits="no optimizer, no allocator; activations are the outputs of PyTorch's operators, where"
    " the source counts those of an exported graph",
    estimate=estimate,
)
