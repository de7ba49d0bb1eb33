"""Jobs whose sizes depend on data: one that fits with other data is not rejected."""

from __future__ import annotations

from memgate.decision import Decision
from memgate.gpus import GpuTarget
from memgate.report import SIZES_DEPEND_ON_DATA, Estimate
from memgate.verdict import decide


def allow_for_data(said: Estimate, least_segments_bytes: int | None, target: GpuTarget) -> Estimate:
    """Do not reject a job that takes less with other data, if it may fit then.

    The note that gives the range is the reason for the decision then, so it comes first.

    Args:
        said: for the data with which it takes most.
        least_segments_bytes: what its allocator needs with other data; None if that is the same.
        target: the GPU.
    """
    if least_segments_bytes is None or said.decision is not Decision.REJECT:
        return said
    smallest = decide(
        least_segments_bytes,
        target.gpu,
        already_used_bytes=target.already_used_bytes,
        communication=said.communication_range,
        bounds=said.bounds_on(target.gpu),
    )
    if smallest.decision is Decision.REJECT:
        return said
    reasons = sorted(said.reasons, key=lambda reason: reason.code != SIZES_DEPEND_ON_DATA)
    return said.model_copy(update={"decision": Decision.UNCERTAIN, "reasons": reasons})
