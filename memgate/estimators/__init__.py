"""Estimators of others, to be compared with: what each says of a job that was described.

They are asked like engines (``--engine dnnmem``), and never chosen. Each is one small file that
says where it is from, what its authors claim, and what is not as in the source.
"""

from __future__ import annotations

from collections.abc import Mapping

from memgate.estimators.about import Baseline
from memgate.estimators.accelerate import ACCELERATE
from memgate.estimators.deepspeed import DEEPSPEED
from memgate.estimators.dnnmem import DNNMEM
from memgate.estimators.facts import JobFacts, Operator, Weight
from memgate.estimators.horus import HORUS
from memgate.estimators.llmem import LLMEM
from memgate.estimators.memtracker import MEMTRACKER
from memgate.estimators.rule_of_thumb import RULE_OF_THUMB
from memgate.estimators.schedtune import SCHEDTUNE

__all__ = ["ESTIMATORS", "Baseline", "JobFacts", "Operator", "Weight"]

#: by name
ESTIMATORS: Mapping[str, Baseline] = {
    one.name: one
    for one in (
        *(DNNMEM, SCHEDTUNE, LLMEM, HORUS),
        *(ACCELERATE, DEEPSPEED, MEMTRACKER, RULE_OF_THUMB),
    )
}
