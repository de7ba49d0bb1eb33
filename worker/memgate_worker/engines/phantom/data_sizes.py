"""Two runs of a job whose sizes depend on data -> one answer: the larger, with the range.

What ``nonzero``, ``unique`` and boolean masks find depends on data, and where that data is computed
on the GPU it does not exist here. So such a job is run twice: with all elements found, and with
none (for ``unique``: one). The truth lies between for all but the oddest jobs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.capacity import MemoryNeeds
from memgate.errors import LimitExceededError, MemgateError, NotProtectedError
from memgate.report import SIZES_DEPEND_ON_DATA, Reason
from memgate.units import format_size
from memgate_worker.engines.traced import TracedJob

#: read by ``native/values/rules.cpp``: which end a run takes; all unless it is ``none``
DATA_SIZES = "MEMGATE_PHANTOM_DATA_SIZES"


def join_ends(with_all: TracedJob, run_with_none: Callable[[], TracedJob]) -> TracedJob:
    """Return the run that takes more, with a note on both.

    The job may fail where nothing is found (it divides by a count, say): then the answer is for the
    other end, and the note says so.
    """
    try:
        with_none = run_with_none()
    except MemgateError as error:
        is_ours = isinstance(error, NotProtectedError | LimitExceededError)
        why_not = "was not seen" if is_ours else "fails"
        message = (
            f"with all elements found it reserves {_reserved(with_all)}, and that is the answer;"
            f" with none it {why_not}: {error.message}"
        )
        return _with_note(with_all, message)
    low, high = sorted((with_none, with_all), key=_peak)
    if _peak(low) == _peak(high):
        return _with_note(high, f"it reserves {_reserved(high)} with all or none of them found")
    ends = (("all", with_all), ("none", with_none))
    figures = " and ".join(f"{_reserved(run)} with {end} of them found" for end, run in ends)
    noted = _with_note(high, f"it reserves {figures}; the answer is for the larger")
    needs = MemoryNeeds(low.timeline, parse_alloc_conf(low.alloc_conf))
    return replace(noted, least_segments_bytes=needs.least_bytes())


def _peak(traced: TracedJob) -> int:
    needs = MemoryNeeds(traced.timeline, parse_alloc_conf(traced.alloc_conf))
    return needs.ample.peak_reserved_bytes


def _reserved(traced: TracedJob) -> str:
    return format_size(_peak(traced))


def _with_note(traced: TracedJob, figures: str) -> TracedJob:
    note = Reason(
        code=SIZES_DEPEND_ON_DATA,
        message="the job makes tensors whose size depends on data (nonzero, unique, boolean masks)"
        f" that there is none of here: {figures}",
    )
    return replace(traced, notes=(note, *traced.notes))
