"""accelerate's ``estimate-memory``: the weights, four times.

Hugging Face accelerate, ``commands/estimate.py``: training with Adam takes the weights, gradients,
and two states; of 16-bit mixed precision, weights of 32 bits and the states decide. What is shown
is the largest of the parts model, gradients, optimizer and step.
"""

from __future__ import annotations

from memgate.estimators.about import Baseline
from memgate.estimators.facts import JobFacts
from memgate.estimators.parts import hold
from memgate.jobspec import JobSpec, Precision
from memgate.timeline import Category, Timeline

#: of the weights in 32 bits: all at once, and of mixed precision the states of the optimizer
_STEP = {False: 4, True: 2}
_FULL_BYTES = 4


def estimate(job: JobSpec, facts: JobFacts) -> Timeline:
    """Multiply the weights."""
    is_mixed = job.precision is not Precision.FP32
    return hold({Category.OTHER: _STEP[is_mixed] * _FULL_BYTES * facts.num_parameters})


ACCELERATE = Baseline(
    name="accelerate",
    source="Hugging Face accelerate, estimate-memory",
    published="none",
    limits="always Adam, no activations, batch of one",
    estimate=estimate,
)
