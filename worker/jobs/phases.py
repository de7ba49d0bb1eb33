"""The phases of a training loop."""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """Parts of an iteration; what is allocated in one tells what it is for."""

    BUILD = "build"
    BATCH = "batch"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    ZERO_GRAD = "zero_grad"
    END = "end"
