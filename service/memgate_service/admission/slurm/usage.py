"""A finished job -> one line for its owner: asked, predicted, used, and what would have sufficed.

As ``seff`` does it for processors and memory. What was used comes from the node's epilog
(``measuring``) or from accounting; without either the line says so, and what would have sufficed is
by the prediction.
"""

from __future__ import annotations

from memgate.units import format_size
from memgate_service.admission.slurm.commands import SlurmError, run
from memgate_service.admission.slurm.outcomes import SACCT_FORMAT, Finished, read_sacct
from memgate_service.admission.slurm.records import Record
from memgate_service.admission.slurm.settling import find_cards


def describe_use(
    job_id: int, record: Record, peak_bytes: int | None, *, is_least: bool = False
) -> str:
    """Say what a job asked for, was predicted to need, and took; ``is_least``: or more."""
    asked = record.gpu or "a GPU"
    if record.capacity:
        asked += f" ({format_size(record.capacity)})"
    predicted = format_size(record.needs) if record.needs else "nothing"
    used = format_size(peak_bytes) if peak_bytes else "not measured"
    used = f"at least {used}" if peak_bytes and is_least else used
    line = f"job {job_id}: asked for {asked}, predicted {predicted}, used {used}"
    enough = _find_enough(record, peak_bytes or record.needs)
    if enough:
        line += f"; {enough} would have sufficed"
        line += "" if peak_bytes else ", by the prediction"
        line += ", by what was seen" if peak_bytes and is_least else ""
    return line


def _find_enough(record: Record, num_bytes: int) -> str:
    """Return the smallest GPU of the cluster that has so much, if it is not the one it had."""
    if not num_bytes:
        return ""
    fitting = (card for card in find_cards(record.cards) if card.memory_bytes >= num_bytes)
    smallest = next(fitting, None)
    is_smaller = smallest is not None and smallest.memory_bytes < record.capacity
    return smallest.name if smallest is not None and is_smaller else ""


def read_use(job_id: int) -> str:
    """Ask accounting about a job, and describe it.

    Raises:
        SlurmError: if there is no such job, or memgate did not judge it.
    """
    text = run(
        [
            *("sacct", "--noheader", "--parsable2", "--noconvert"),
            f"--jobs={job_id}",
            *SACCT_FORMAT,
        ]
    )
    found: dict[int, Finished] = {job.job_id: job for job in read_sacct(text)}
    if job_id not in found:
        raise SlurmError(f"job {job_id}: accounting has no job of that number that memgate judged")
    job = found[job_id]
    return describe_use(job_id, job.record, job.peak_bytes)
