"""What a verdict says, in one place: what a job needs, what there is, why, and what would help.

Every door prints these sentences and writes none of its own: command line, HTTP, dashboard,
kubectl, sbatch. The one headline number is ``needs_bytes``, which is compared with what is
available; ``least_bytes`` is named only where the two decide differently.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict

from memgate.decision import Decision
from memgate.errors import Fault
from memgate.units import format_size

_VERBS = {
    Decision.ADMIT: "fits on",
    Decision.UNCERTAIN: "may not fit on",
    Decision.REJECT: "does not fit on",
    Decision.UNKNOWN: "is not known to fit on",
}

_WITHOUT_ESTIMATE = {
    Fault.CALLER: "the description of the job is wrong",
    Fault.JOB: "the job would fail on the GPU",
    Fault.UNSUPPORTED: "memgate cannot tell whether it fits, a limit of memgate's, not the job's",
    Fault.OPERATOR: "memgate cannot tell whether it fits until its operator acts",
    Fault.PASSING: "no answer yet",
}

#: for a verdict that does not follow from the sizes; the reasons say why
IN_DOUBT = "the estimate is in doubt"

#: GPUs that are named as a way out
_MAX_NAMED_GPUS = 3


class Sizes(NamedTuple):
    """What is compared, in bytes."""

    needs_bytes: int
    """What the job needs at most: the bound that decides."""
    least_bytes: int
    """What it needs at least."""
    available_bytes: int
    """What the GPU has, less what others already use."""
    used_bytes: int = 0
    """What others already use."""
    has_nccl: bool = False
    """What NCCL takes is part of both."""

    @property
    def is_between(self) -> bool:
        """The least would fit and the most would not."""
        return self.least_bytes <= self.available_bytes < self.needs_bytes


class Explanation(BaseModel):
    """A verdict in words."""

    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True)

    headline: str
    """``does not fit on t4: needs 15.12 GiB, t4 has 14.56 GiB``."""
    why: list[str]
    """What else decided, or is worth knowing, the most important first."""
    helps: list[str]
    """What would make it fit, best first; empty if it fits."""

    @property
    def text(self) -> str:
        """All of it in one line."""
        return "; ".join([self.headline, *self.why, *self.helps])


def name_verdict(decision: Decision, gpu: str) -> str:
    """Say what was decided: ``does not fit on t4``."""
    return f"{_VERBS[decision]} {gpu}"


def compare_sizes(gpu: str, sizes: Sizes) -> str:
    """Say what is needed and what there is: ``needs 15.12 GiB, t4 has 14.56 GiB``."""
    available = format_size(sizes.available_bytes)
    has = f"{gpu} has {available}{' left' if sizes.used_bytes else ''}"
    needs = format_size(sizes.needs_bytes)
    if sizes.is_between:
        least = format_size(sizes.least_bytes)
        beside = "the CUDA context and NCCL" if sizes.has_nccl else "the CUDA context"
        return f"needs {least} to {needs}, depending on {beside}, {has}"
    missing = sizes.needs_bytes - sizes.available_bytes
    if missing > 0 and needs == available:  # rounded, the two would look the same
        return f"needs {needs}, {has}, {format_size(missing)} too little"
    return f"needs {needs}, {has}"


def describe_peak(peak_bytes: int, needs_bytes: int, *, has_nccl: bool = False) -> str:
    """Say what a job would take if it could, and why that is not what it needs."""
    peak = f"{format_size(peak_bytes)} with ample memory"
    if peak_bytes <= needs_bytes and has_nccl:
        return (
            f"{peak}, the usual CUDA context and what NCCL is expected to take; what it needs"
            " allows for more of both"
        )
    if peak_bytes <= needs_bytes:
        return f"{peak} and the usual CUDA context; what it needs allows for a larger one"
    return f"{peak}; with less, the allocator gives back what it has cached"


def name_batch(size: int, gpu: str = "") -> str:
    """Say which batch is the largest that fits, and where; 0 if none does."""
    on_it = f" on {gpu}" if gpu else ""
    if not size:
        return f"no batch size fits{on_it}"
    return f"batch size {size:,} fits{on_it}, the largest that does"


def name_gpus(fits_on: Sequence[str]) -> list[str]:
    """Say on which GPUs a job fits as it is; nothing if there are none."""
    return [f"as it is, it fits on {', '.join(fits_on[:_MAX_NAMED_GPUS])}"] if fits_on else []


def explain(
    decision: Decision,
    gpu: str,
    sizes: Sizes,
    *,
    why: Sequence[str] = (),
    largest_batch_size: int | None = None,
    smaller_batch: str = "",
    fits_on: Sequence[str] = (),
) -> Explanation:
    """Put a verdict into words.

    Args:
        decision: what was decided.
        gpu: the name of the GPU.
        sizes: what was compared.
        why: doubts and notes about the run.
        largest_batch_size: the largest batch that is admitted, if it is known.
        smaller_batch: what is known about a smaller batch if the largest is not.
        fits_on: GPUs on which the job fits as it is, the smallest first.
    """
    headline = f"{name_verdict(decision, gpu)}: {compare_sizes(gpu, sizes)}"
    is_doubted = decision is Decision.UNCERTAIN and sizes.needs_bytes <= sizes.available_bytes
    if is_doubted:
        headline += f", but {IN_DOUBT}"
    helps = []
    if decision is not Decision.ADMIT:
        if largest_batch_size is not None:
            helps.append(name_batch(largest_batch_size))
        elif smaller_batch:
            helps.append(smaller_batch)
        if not is_doubted:  # elsewhere the doubt would be the same
            helps += name_gpus([f"an empty {name}" if name == gpu else name for name in fits_on])
    return Explanation(headline=headline, why=list(why), helps=helps)


def explain_fault(fault: Fault, why: str) -> Explanation:
    """Say whose fault it is that there is no estimate, and what is wrong."""
    return Explanation(headline=f"{_WITHOUT_ESTIMATE[fault]}: {why}", why=[], helps=[])
