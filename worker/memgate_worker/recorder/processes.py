"""The processes of a command -> why the one that is answered for is not all of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from memgate.report import Reason
from memgate.units import format_size
from memgate_worker.recorder.failures import explain_ended, tell_failure
from memgate_worker.recorder.listening import Heard
from memgate_worker.recorder.lookups import find_hidden_use


def doubt_processes(heard: Heard, peaks: Mapping[int, int], unseen: str) -> Iterator[Reason]:
    """Yield why one process of a command is not all of it.

    Args:
        heard: what all of them said.
        peaks: of those that were recorded and took memory of the GPU, how much, by process id.
        unseen: what of the command is known to come later.
    """
    at_once = sorted(peak for pid, peak in peaks.items() if pid in heard.at_once)
    if len(at_once) > 1:
        others = format_size(sum(at_once[:-1]))
        yield Reason(
            code="SEVERAL_PROCESSES",
            message=f"{len(at_once)} processes of this command use a GPU at the same time; the"
            " answer is for the one that takes the most, on a GPU of its own. On the same one, the"
            f" others take up to {others} and a CUDA context each",
        )
    if lost := heard.devices - heard.recordings.keys():
        yield Reason(
            code="PROCESS_NOT_RECORDED",
            message=f"{len(lost)} processes of this command used a GPU and ended before they could"
            " be recorded; what they took is not known",
        )
    for problem in heard.problems:
        yield Reason(code="PROCESS_NOT_RECORDED", message=problem)
    if heard.ended:
        yield Reason(
            code="PROGRAM_ENDED",
            message=f"{explain_ended(heard.ended)}. What the job does after it is not known",
        )
    yield from _doubt_lookups(heard)
    for failure in heard.later_failures.values():
        unseen = f"a later command of it failed ({tell_failure(failure)})"
    if unseen:
        yield Reason(
            code="COMMANDS_NOT_SEEN",
            message=f"not all of this command was seen: {unseen}, after a job of it was watched and"
            " stopped or had ended; what later commands take is not known: run all of it to its end"
            " with memgate run --until end, or ask about each command alone",
        )


def _doubt_lookups(heard: Heard) -> Iterator[Reason]:
    """Yield which programs would have found a GPU on a machine that has one."""
    hidden = find_hidden_use(heard.lookups, heard.devices | heard.ancestors)
    if not hidden:
        return
    first, *others = hidden
    more = f", and so did {len(others)} other programs" if others else ""
    yield Reason(
        code="DRIVER_NOT_FOUND",
        message=f"{first.program} looked for NVIDIA's driver ({first.sought}) without torch, did"
        f" not find it, and went on without a GPU{more}; what it takes where there is one is not in"
        " the figures",
    )


def note_processes(heard: Heard, peaks: Mapping[int, int], decisive: int) -> Iterator[Reason]:
    """Yield which processes used the GPU before or after the one that is answered for.

    Args:
        heard: what all of them said.
        peaks: what each took of the GPU, by process id.
        decisive: the one that is answered for.
    """
    others = [peak for pid, peak in peaks.items() if pid != decisive and pid not in heard.at_once]
    if not others:
        return
    count = "another process" if len(others) == 1 else f"{len(others)} other processes"
    yield Reason(
        code="OTHER_PROCESSES",
        message=f"{count} of this command used the GPU before or after the one that is answered"
        f" for, in this run not at the same time, and took less: {format_size(max(others))},"
        " without the context; jobs that memgate ended early may overlap where they go on",
    )
