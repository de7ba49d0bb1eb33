"""A script, or answers to questions -> a first job spec. Read ``script`` or ``answers`` first."""

from memgate.first_spec.answers import (
    OPTIMIZERS,
    QUESTIONS,
    read_batch,
    read_input,
    read_model,
    read_optimizer,
    read_precision,
)
from memgate.first_spec.finding import Findings
from memgate.first_spec.script import read_script

__all__ = [
    "OPTIMIZERS",
    "QUESTIONS",
    "Findings",
    "read_batch",
    "read_input",
    "read_model",
    "read_optimizer",
    "read_precision",
    "read_script",
]
