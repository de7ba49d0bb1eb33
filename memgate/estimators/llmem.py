"""LLMem: weights, optimizer, the outputs of decoder blocks and of the head of a language model.

Kim et al., "LLMem: Estimating GPU Memory Usage for Fine-Tuning Pre-Trained LLMs" (IJCAI 2024). The
source first runs the model on a GPU to measure what its outputs take; here they are added up from
the shapes of its operators, so no GPU is needed.
"""

from __future__ import annotations

from memgate.errors import UnsupportedJobError
from memgate.estimators.about import Baseline
from memgate.estimators.facts import JobFacts
from memgate.estimators.parts import count_states, hold
from memgate.jobspec import JobSpec
from memgate.timeline import Category, Timeline

#: the logits, their probabilities and the gradient of these
_HEAD_COPIES = 3


def estimate(job: JobSpec, facts: JobFacts) -> Timeline:
    """Add the parts up.

    Raises:
        UnsupportedJobError: if it is not a language model.
    """
    if not job.input.sequence_length:
        raise UnsupportedJobError(
            "engine llmem: it is for language models only, and 'input' has no sequence_length; use"
            " the phantom engine (--engine phantom)"
        )
    return hold(
        {
            Category.PARAMETERS: facts.weight_bytes + facts.buffer_bytes,
            Category.GRADIENTS: facts.trained_bytes,
            Category.OPTIMIZER_STATE: count_states(job) * facts.trained_bytes,
            Category.ACTIVATIONS: facts.activation_bytes,
            Category.TEMPORARY: (_HEAD_COPIES - 1) * facts.output_bytes,
            Category.BATCH: facts.batch_bytes,
        }
    )


LLMEM = Baseline(
    name="llmem",
    source="Kim et al., IJCAI 2024",
    published="up to 1.6 % on one GPU, 3.0 % on several",
    limits="without its run on a GPU, from which it takes what outputs need; on one GPU only, and"
    " language models only",
    estimate=estimate,
)
