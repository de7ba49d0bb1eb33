"""Makers of test objects with defaults: a test spells only what it is about."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.allocators import make_allocator
from memgate.allocator.caching import CachingAllocator
from memgate.allocator.device import AddressPolicy, Device
from memgate.allocator.pool import PoolBlock
from memgate.allocator.protocol import Allocator, OutOfMemory, SegmentAction
from memgate.allocator.replay import OnOom, Replay, replay
from memgate.context import USUAL_CONTEXT_BYTES
from memgate.decision import Decision
from memgate.gpus import CATALOGUE
from memgate.report import Estimate, Reason
from memgate.timeline import (
    Alloc,
    EmptyCache,
    EventsPending,
    Free,
    RecordStream,
    SetFraction,
    Timeline,
    TimelineEvent,
)
from memgate.trace import Trace, read_trace
from memgate.units import GIB, MIB
from tests.cores import replay_on_both

AMPLE = 64 * GIB

#: real profiler traces, by the PyTorch that made them
TINY_TRACES = ("tiny-torch-2.14", "tiny-torch-2.6")


def read_tiny_trace(name: str) -> Trace:
    """Read one of ``TINY_TRACES``."""
    path = Path(__file__).parent / "data" / "traces" / f"{name}.json.gz"
    return read_trace(io.BytesIO(path.read_bytes()))


class Bench:
    """A caching allocator on a device, and what passed between the two.

    Sizes are given in bytes; ``mib`` makes them readable.
    """

    def __init__(
        self,
        conf: str = "",
        *,
        capacity: int = AMPLE,
        context: int = 0,
        address_policy: AddressPolicy = AddressPolicy.UP,
    ) -> None:
        self.device = Device(
            capacity_bytes=capacity, context_bytes=context, address_policy=address_policy
        )
        self.segment_events: list[tuple[str, int, int]] = []
        allocator = make_allocator(
            "caching", parse_alloc_conf(conf), self.device, self._record_trace
        )
        assert isinstance(allocator, CachingAllocator)
        self.allocator = allocator
        self.stats = allocator.stats

    def _record_trace(self, action: SegmentAction, size_bytes: int, stream: int) -> None:
        self.segment_events.append((action.value, size_bytes, stream))

    def malloc(self, size: int, stream: int = 0) -> PoolBlock:
        """Allocate, or fail the test."""
        block = self.allocator.malloc(size, stream)
        assert isinstance(block, PoolBlock), block
        return block

    def malloc_fails(self, size: int, stream: int = 0) -> OutOfMemory:
        """Run out of memory, or fail the test."""
        oom = self.allocator.malloc(size, stream)
        assert isinstance(oom, OutOfMemory), oom
        return oom

    def free(self, *blocks: PoolBlock) -> None:
        """Free in the order given."""
        for block in blocks:
            self.allocator.free(block)

    def cached(self, *sizes: int, stream: int = 0) -> None:
        """Leave free segments of these sizes in the cache."""
        self.free(*[self.malloc(size, stream) for size in sizes])

    @property
    def reserved(self) -> int:
        """Bytes held from the device."""
        return self.stats.all.reserved_bytes

    @property
    def allocated(self) -> int:
        """Bytes held by the program."""
        return self.stats.all.allocated_bytes


def build_estimate(**fields: Any) -> Estimate:
    """Build an answer out of figures, some of them the test's own: 4 GiB on an empty rtx-3060."""
    capacity = fields.pop("capacity_bytes", CATALOGUE["rtx-3060"].memory_bytes)
    needs = fields.pop("needs_bytes", 5 * GIB)
    available = fields.pop("available_bytes", capacity)
    known: dict[str, Any] = {
        "decision": Decision.ADMIT,
        "engine": "phantom",
        "gpu": "rtx-3060",
        "needs_bytes": needs,
        "least_bytes": 4 * GIB,
        "capacity_bytes": capacity,
        "available_bytes": available,
        "headroom_bytes": available - needs,
        "peak_bytes": 4 * GIB + USUAL_CONTEXT_BYTES,
        "peak_reserved_bytes": 4 * GIB,
        "peak_allocated_bytes": 3 * GIB,
        "peak_on_gpu_bytes": 4 * GIB + USUAL_CONTEXT_BYTES,
        "peak_reserved_on_gpu_bytes": 4 * GIB,
        "context_bytes": USUAL_CONTEXT_BYTES,
        "required_bytes": 4 * GIB + USUAL_CONTEXT_BYTES,
        "upper_bound_bytes": needs,
        "breakdown": {"activations": 4 * GIB, "context": USUAL_CONTEXT_BYTES},
        "reasons": [Reason(code="FITS", message="needs 5.00 GiB, rtx-3060 has 11.65 GiB")],
        "oom": None,
        "fits_on": ["rtx-3060", "h200"],
        "timings_ms": {},
        "runtime": "torch-2.14",
        "versions": {},
    }
    return Estimate(**(known | fields))


def mib(count: float) -> int:
    """Return a number of MiB as bytes."""
    return int(count * MIB)


def make_timeline(*events: TimelineEvent) -> Timeline:
    """Make a timeline; without events, one block that is allocated and freed."""
    return Timeline(events=events or (Alloc(1, 512), Free(1)))


def make_replay(
    *events: TimelineEvent,
    conf: str = "",
    capacity: int = AMPLE,
    on_oom: OnOom = OnOom.STOP,
    allocator_name: str = "caching",
) -> Replay:
    """Replay events on an ample device with default settings; on both cores, if both can."""
    question = (make_timeline(*events), parse_alloc_conf(conf), capacity)
    if allocator_name == "caching":
        return replay_on_both(*question, on_oom=on_oom)
    return replay(*question, on_oom=on_oom, allocator_name=allocator_name)


def apply_event(allocator: Allocator[Any], event: TimelineEvent, live: dict[int, Any]) -> None:
    """Do one event by hand, so that a test can look at the allocator after each."""
    match event:
        case Alloc(block_id, size, stream):
            block = allocator.malloc(size, stream) if size else None
            live[block_id] = None if isinstance(block, OutOfMemory) else block
        case Free(block_id):
            if (block := live.pop(block_id)) is not None:
                allocator.free(block)
        case RecordStream(block_id, stream):
            if (block := live[block_id]) is not None:
                allocator.record_stream(block, stream)
        case EventsPending(pending):
            allocator.set_events_pending(bool(pending))
        case EmptyCache():
            allocator.empty_cache()
        case SetFraction(fraction):
            allocator.set_memory_fraction(fraction)


def make_record(**fields: Any) -> dict[str, Any]:
    """Make a vector record that matches: one block of 512 bytes, allocated and freed."""
    record: dict[str, Any] = {
        "id": "tiny",
        "config": "",
        "capacity_bytes": AMPLE,
        "on_oom": "stop",
        "events": [["alloc", 1, 512, 0], ["free", 1]],
        "expect": {"peak_reserved": 2 * MIB, "peak_allocated": 512},
    }
    return record | fields


def to_lines(records: Iterable[dict[str, Any]]) -> bytes:
    """Write records as a vector file."""
    return "".join(json.dumps(record) + "\n" for record in records).encode()
