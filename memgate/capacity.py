"""Stage 5: Timeline -> the smallest capacity from which on it runs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import NamedTuple

from memgate.allocator.config import AllocatorConfig
from memgate.allocator.replay import Core, Probe, Replay, Replayer
from memgate.allocator.window import BEYOND_BYTES
from memgate.breakdown import break_down
from memgate.timeline import Timeline
from memgate.units import MIB

#: a device so large that nothing depends on it
AMPLE_BYTES = 1 << 43

#: segments are multiples of this, and so is what the answer can depend on
_STEP = 2 * MIB

#: the search replays no more events than this, or than ``_MAX_RUNS`` whole runs have
_MAX_EVENTS = 4_000_000
_MAX_RUNS = 8


class RequiredMemory(NamedTuple):
    """What a timeline needs, as ``MemoryNeeds.find_required`` finds it."""

    size_bytes: int
    #: nothing smaller will do; otherwise the search was stopped: less may do
    is_exact: bool


class MemoryNeeds:
    """What a timeline needs under some allocator settings: asked for many GPUs.

    No two replays go the same way: each knows for which capacities it stands.
    """

    def __init__(
        self,
        timeline: Timeline,
        config: AllocatorConfig,
        *,
        core: Core | None = None,
        max_events: int = _MAX_EVENTS,
    ) -> None:
        self._timeline = timeline
        self._config = config
        self._replayer = Replayer(timeline, core=core)
        self._runs: list[Replay] = []
        self._probes: list[Probe] = []
        self._max_events = max(max_events, _MAX_RUNS * len(timeline.events))

    @cached_property
    def ample(self) -> Replay:
        """What it would do with unlimited memory."""
        return self._run(AMPLE_BYTES)

    @cached_property
    def breakdown(self) -> Mapping[str, int]:
        """What would hold that memory at its peak, by category."""
        return break_down(self._timeline, self.ample)

    def run_in(self, capacity_bytes: int) -> Replay:
        """Return what it does on a device: with enough memory, what it does with ample memory."""
        for run in (self.ample, *self._runs):
            # the message of a failed request names the capacity
            if not run.ooms and run.lowest_bytes <= capacity_bytes < run.below_bytes:
                return run
        return self._run(capacity_bytes)

    def least_bytes(self, *, died_at_bytes: int = 0) -> int:
        """Return the smallest capacity from which on it runs, more than one in which it died.

        ``died_at_bytes`` may lie between two of the capacities that are tried.
        """
        return max(self.required.size_bytes, (died_at_bytes // _STEP + 1) * _STEP)

    @cached_property
    def required(self) -> RequiredMemory:
        """The smallest capacity, in steps of 2 MiB, in which and above which it always runs.

        Under pressure the allocator gives its cache back and tries again, so less than the peak of
        reserved memory often suffices. But a little less pressure may be worse: the cache is given
        back later, and lies in pieces. So a job may survive at some capacity by luck and die at
        larger ones. What is returned does not depend on luck.

        From the top down, a replay tells down to which capacity it stands; the next is that at one
        step less. The first in which the job dies ends the search, or the limit of work.
        """
        top = self._find_top()
        lowest_bytes, num_events = top.lowest_bytes, 0
        while True:
            found_bytes = -(-lowest_bytes // _STEP) * _STEP
            if found_bytes == 0:
                return RequiredMemory(0, is_exact=True)
            if num_events > self._max_events:
                return RequiredMemory(found_bytes, is_exact=False)
            probe = self._probe(found_bytes - _STEP)
            if not probe.survives:
                return RequiredMemory(found_bytes, is_exact=True)
            lowest_bytes = probe.lowest_bytes
            num_events += probe.num_events

    def _find_top(self) -> Probe:
        """Return what happens in the smallest of some huge capacities in which it survives."""
        capacity_bytes = AMPLE_BYTES
        probe = _to_probe(self.ample)
        while not probe.survives and capacity_bytes < BEYOND_BYTES // 2:
            capacity_bytes *= 2
            probe = self._probe(capacity_bytes)
        # a program that may hold nothing dies everywhere
        return probe if probe.survives else probe._replace(lowest_bytes=BEYOND_BYTES // 2)

    def _run(self, capacity_bytes: int) -> Replay:
        run = self._replayer.replay(self._config, capacity_bytes)
        self._runs.append(run)
        return run

    def _probe(self, capacity_bytes: int) -> Probe:
        for known in (*map(_to_probe, self._runs), *self._probes):
            if known.lowest_bytes <= capacity_bytes < known.below_bytes:
                return known
        probe = self._replayer.probe(self._config, capacity_bytes)
        self._probes.append(probe)
        return probe


def _to_probe(run: Replay) -> Probe:
    return Probe(not run.ooms, run.lowest_bytes, run.below_bytes, run.num_events)
