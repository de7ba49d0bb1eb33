"""DeepSpeed's formulas for what ZeRO's stages 2 and 3 hold.

DeepSpeed, ``estimate_zero2_model_states_mem_needs`` and its counterpart of stage 3: bytes for each
parameter with 16-bit mixed precision and Adam, divided by the number of GPUs.
"""

from __future__ import annotations

from memgate.estimators.about import Baseline
from memgate.estimators.facts import JobFacts
from memgate.estimators.parts import hold
from memgate.jobspec import JobSpec
from memgate.timeline import Category, Timeline

#: bytes for a parameter: on every GPU and divided, by stage
_ZERO2_EACH, _ZERO2_DIVIDED = 4, 16
_ZERO3_DIVIDED = 18
#: bytes for a parameter of the largest layer, which is gathered
_ZERO3_LAYER = 4

#: what divides the weights themselves
_STAGE_3 = ("zero3", "fsdp", "fsdp2", "hsdp")


def estimate(job: JobSpec, facts: JobFacts) -> Timeline:
    """Add up what the stage holds; on one GPU, stage 2."""
    divided = job.distributed
    num_gpus = 1 if divided is None else divided.world_size
    if divided is not None and divided.strategy.value in _STAGE_3:
        total = _ZERO3_LAYER * facts.largest_layer
        total += _ZERO3_DIVIDED * facts.num_parameters // num_gpus
    else:
        total = _ZERO2_EACH * facts.num_parameters
        total += _ZERO2_DIVIDED * facts.num_parameters // num_gpus
    return hold({Category.OTHER: total})


DEEPSPEED = Baseline(
    name="deepspeed",
    source="DeepSpeed, estimate_zero2_ and estimate_zero3_model_states_mem_needs",
    published="none",
    limits="always Adam with 16-bit mixed precision, no activations, no offloading here",
    estimate=estimate,
)
