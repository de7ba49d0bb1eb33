"""A rule of thumb: weights, gradients and states of the optimizer, and a fifth on top."""

from __future__ import annotations

from memgate.estimators.about import Baseline
from memgate.estimators.facts import JobFacts
from memgate.estimators.parts import count_states, hold
from memgate.jobspec import JobSpec
from memgate.timeline import Category, Timeline

#: for activations and everything else
_ON_TOP = 0.2


def estimate(job: JobSpec, facts: JobFacts) -> Timeline:
    """Add them up."""
    states = count_states(job) * facts.trained_bytes
    return hold(
        {
            Category.PARAMETERS: facts.weight_bytes,
            Category.GRADIENTS: facts.trained_bytes,
            Category.OPTIMIZER_STATE: states,
            Category.ACTIVATIONS: _ON_TOP * (facts.weight_bytes + facts.trained_bytes + states),
        }
    )


RULE_OF_THUMB = Baseline(
    name="rule-of-thumb",
    source="what people say",
    published="none",
    limits="knows nothing of batches",
    estimate=estimate,
)
