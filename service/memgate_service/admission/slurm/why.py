"""A job -> one line for its owner: what memgate did with it, and why. ``memgate slurm why``.

In ``squeue`` a job that memgate holds reads ``BeginTime``, and one that it has canceled is gone:
Slurm has no place for more, but for AdminComment, which this reads.
"""

from __future__ import annotations

import re
import time

from memgate.units import format_size
from memgate_service.admission.slurm.commands import SlurmError, run
from memgate_service.admission.slurm.records import REHEARSAL, Record, read_comment


def describe_job(job_id: int, state: str, record: Record) -> str:
    """Say what memgate did with a job."""
    why = record.why or "no answer yet"
    if record.held and (record.is_unanswered or record.decision == REHEARSAL):
        why = "it is run once without a GPU" if record.decision == REHEARSAL else "no answer yet"
        done = f"held by memgate{_until(record)}: {why}"
        if state == "CANCELLED":
            done = "canceled, and not by memgate, which had no answer yet"
        elif state not in ("PENDING", ""):
            done = "let in by memgate: its timer ended before there was an answer"
    elif record.held:
        done = f"canceled by memgate: {why}" if state == "CANCELLED" else f"held by memgate: {why}"
    elif record.decision == "admit":
        done = f"let in by memgate: it fits on {record.gpu}"
    else:
        done = f"let in by memgate{_although(record)}: {_reason(record)}"
    return f"job {job_id}: {done}" + (f"; see {record.page}" if record.page else "")


def _although(record: Record) -> str:
    """Say that nothing was enforced, if that is why."""
    return f", which does not enforce anything for it ({record.mode})" if record.mode else ""


def _reason(record: Record) -> str:
    if record.why or record.decision not in ("reject", "uncertain"):
        return record.why or record.decision.replace("_", " ")
    fits = "does not fit" if record.decision == "reject" else "may not fit"
    sizes = f"needs {format_size(record.needs)}, {record.gpu} has {format_size(record.capacity)}"
    return f"it {fits} on {record.gpu}: {sizes}"


def _until(record: Record) -> str:
    if not record.timer:
        return ""
    return f" until {time.strftime('%H:%M:%S', time.localtime(record.timer))} at the latest"


def read_why(job_id: int) -> str:
    """Ask Slurm about a job, or accounting if Slurm has forgotten it.

    Raises:
        SlurmError: if there is no such job, or memgate has no record of it.
    """
    try:
        shown = run(["scontrol", "show", "job", str(job_id)])
        state, comment = (
            _find("JobState", r"(\S+)", shown),
            _find("AdminComment", r"(.*?)\s*$", shown),
        )
    except SlurmError:
        command = ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job_id}"]
        said = run([*command, "--delimiter=\x1f", "--format=State,AdminComment"])
        state, _, comment = said.partition("\n")[0].partition("\x1f")
        state = state.partition(" ")[0]  # "CANCELLED by 0"
    found = read_comment(comment)
    if found is None:
        raise SlurmError(f"job {job_id}: memgate has no record of it")
    return describe_job(job_id, state, found.record)


def _find(name: str, value: str, shown: str) -> str:
    """Return the value of a field that begins a line of ``scontrol show job``."""
    found = re.search(rf"^\s*{name}={value}", shown, re.MULTILINE)
    return found[1] if found else ""
