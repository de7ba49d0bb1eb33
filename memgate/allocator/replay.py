"""Stage 5: Timeline -> Replay. Feeds a program's events to an allocator and records the results.

Two programs do that with one answer: ``native_core``, in C++, where it was built, and ``player``,
which is the reference, and the only one for other allocators than the caching one.
"""

from __future__ import annotations

from functools import cached_property

from memgate.allocator.config import AllocatorConfig
from memgate.allocator.device import AddressPolicy, Device
from memgate.allocator.native_core import NativeTimeline, load_core, pack_timeline
from memgate.allocator.player import Player
from memgate.allocator.results import (
    Core,
    OnOom,
    OomEvent,
    Probe,
    Replay,
    ReservedChange,
    SegmentEvent,
)
from memgate.errors import InputError
from memgate.timeline import Timeline

__all__ = [
    "Core",
    "OnOom",
    "OomEvent",
    "Probe",
    "Replay",
    "Replayer",
    "ReservedChange",
    "SegmentEvent",
    "replay",
]


def replay(
    timeline: Timeline,
    config: AllocatorConfig,
    capacity_bytes: int,
    *,
    context_bytes: int = 0,
    on_oom: OnOom = OnOom.STOP,
    address_policy: AddressPolicy = AddressPolicy.UP,
    allocator_name: str = "caching",
    core: Core | None = None,
) -> Replay:
    """Run a timeline on a device of ``capacity_bytes``, of which others hold ``context_bytes``.

    ``core`` is the program that does it: the native one where it is there, unless given.

    Raises:
        TimelineError: if the events contradict each other, such as a free of an unknown id.
        InputError: if the native core is asked for and was not built, or for another allocator.
    """
    if allocator_name != "caching":
        if core is Core.NATIVE:
            raise InputError(f"the native core has no allocator {allocator_name!r}, only 'caching'")
        core = Core.PYTHON
    return Replayer(timeline, core=core).replay(
        config,
        capacity_bytes,
        context_bytes=context_bytes,
        on_oom=on_oom,
        address_policy=address_policy,
        allocator_name=allocator_name,
    )


class Replayer:
    """A timeline that is replayed often: what the native core needs is made once."""

    def __init__(self, timeline: Timeline, *, core: Core | None = None) -> None:
        """Choose the core: the native one where it is there, unless given.

        Raises:
            InputError: if the native core is asked for and was not built.
        """
        self._timeline = timeline
        self._core = load_core() if core is not Core.PYTHON else None
        if core is Core.NATIVE and self._core is None:
            raise InputError("the native core was not built: install memgate with a C++ compiler")

    @cached_property
    def _native(self) -> NativeTimeline | None:
        return None if self._core is None else pack_timeline(self._core, self._timeline)

    def replay(
        self,
        config: AllocatorConfig,
        capacity_bytes: int,
        *,
        context_bytes: int = 0,
        on_oom: OnOom = OnOom.STOP,
        address_policy: AddressPolicy = AddressPolicy.UP,
        allocator_name: str = "caching",
    ) -> Replay:
        """Do what ``replay`` does."""
        if self._native is not None:
            run = self._native.replay(config, capacity_bytes, context_bytes, on_oom, address_policy)
            if run is not None:
                return run
        device = Device(
            capacity_bytes=capacity_bytes,
            context_bytes=context_bytes,
            address_policy=address_policy,
        )
        return Player(config, device, on_oom, allocator_name, self._timeline).play()

    def probe(self, config: AllocatorConfig, capacity_bytes: int) -> Probe:
        """Say whether it runs to its end: what ``replay`` would say, without recording it.

        Raises:
            TimelineError: if the events contradict each other.
        """
        if self._native is not None:
            found = self._native.probe(config, capacity_bytes)
            if found is not None:
                return found
        device = Device(capacity_bytes=capacity_bytes)
        return Player(config, device, OnOom.STOP, "caching", self._timeline).probe()
