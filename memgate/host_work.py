"""Trace -> Trace without what the host computes for itself, where the trace says so.

``memgate profile`` marks what a data loader computes in the script's own process: on a machine with
a GPU, samples are prepared in the host's memory, and only the batch is copied to the device. Other
people's traces have no such marks, and stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from memgate.spans import Spans
from memgate.trace import MemoryEvent, Trace

#: the name of a span of such work
HOST_MARK = "memgate: on the host"


def leave_out_host_work(trace: Trace) -> Trace:
    """Leave out operators in marked spans, and what they allocated."""
    spans = Spans(sorted(note for note in trace.annotations if note.name == HOST_MARK))
    if not spans:
        return trace
    return replace(
        trace,
        ops=tuple(op for op in trace.ops if not spans.contains(op.begin_us)),
        memory_events=tuple(_without(trace.memory_events, spans)),
    )


def _without(events: Iterable[MemoryEvent], spans: Spans) -> Iterator[MemoryEvent]:
    """Leave out what was allocated in spans, with its frees, whenever they come."""
    of_host: set[int] = set()
    for event in sorted(events, key=lambda event: event.at_us):
        if event.size_bytes > 0 and spans.contains(event.at_us):
            of_host.add(event.address)
        elif event.size_bytes > 0 or event.address not in of_host:
            of_host.discard(event.address)
            yield event
        else:
            of_host.remove(event.address)
