"""What a finished job really took, as it is stored."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from memgate.decision import Decision


class MeasuredOutcome(BaseModel):
    """What a finished job really took, next to what was predicted."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    job: str
    model: str
    gpu: str
    predicted_peak_bytes: int
    upper_bound_bytes: int
    measured_peak_bytes: int
    ran_out: bool
    peak_bound_bytes: int | None = None
    """The most that the measured figure should be; None in what an older version stored."""
    decision: Decision | None = None
    """What was decided about the job, None if it ran on a different GPU."""
    capacity_bytes: int | None = None
    key: str = ""
    """Who reported it: the id of an API key."""
    driver: str = ""
    """The version of NVIDIA's driver, if it was said."""
    runtime: str = ""
    """The libraries that it was predicted for."""
    context_bytes: int | None = None
    """What the process held besides what was predicted of its segments; None if the figure does not
    say: it is the allocator's, or the job ran out of memory or on a different GPU."""

    @property
    def is_within(self) -> bool:
        """It took no more than it should have.

        ``upper_bound_bytes`` is about the least memory in which a job runs. With more memory
        available the allocator keeps more, and that does not make the bound wrong.
        """
        return self.measured_peak_bytes <= (self.peak_bound_bytes or self.upper_bound_bytes)
