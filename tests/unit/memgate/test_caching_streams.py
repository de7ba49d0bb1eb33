"""The caching allocator and other streams: ``record_stream``, and frees that wait."""

from __future__ import annotations

from collections.abc import Callable

from tests.builders import Bench, mib

MakeBench = Callable[..., Bench]


class TestStreams:
    """``record_stream`` and frees that wait for events."""

    def test_a_recorded_block_waits_until_its_events_are_done(self, bench: Bench) -> None:
        """It is freed for the program but not for the next request."""
        block = bench.malloc(mib(30))
        bench.allocator.record_stream(block, 1)
        bench.allocator.set_events_pending(True)
        bench.free(block)
        assert bench.allocated == 0
        assert bench.stats.all.active_bytes == mib(30)

        bench.malloc(mib(30))
        assert bench.reserved == mib(60)
        assert bench.stats.all.peak_active_bytes == mib(60)
        assert bench.stats.all.peak_allocated_bytes == mib(30)

        bench.allocator.set_events_pending(False)
        bench.malloc(mib(30))
        assert bench.reserved == mib(60)

    def test_its_own_stream_needs_no_wait(self, bench: Bench) -> None:
        """Recording the stream of allocation changes nothing."""
        block = bench.malloc(mib(30))
        bench.allocator.record_stream(block, 0)
        bench.allocator.set_events_pending(True)
        bench.free(block)

        bench.malloc(mib(30))

        assert bench.reserved == mib(30)

    def test_a_block_waits_for_all_its_streams(self, bench: Bench) -> None:
        """Each stream counts once, however often it was recorded."""
        block = bench.malloc(mib(30))
        for stream in (1, 2, 3, 1):
            bench.allocator.record_stream(block, stream)
        bench.free(block)
        assert block.event_count == 3

        bench.malloc(mib(30))

        assert bench.reserved == mib(30)

    def test_out_of_memory_waits_for_the_events(self, make_bench: MakeBench) -> None:
        """Under pressure the allocator waits for streams rather than fail."""
        bench = make_bench(capacity=mib(50))
        block = bench.malloc(mib(30))
        bench.allocator.record_stream(block, 1)
        bench.allocator.set_events_pending(True)
        bench.free(block)

        bench.malloc(mib(40))

        assert bench.stats.num_sync_all_streams == 1

    def test_a_waiting_neighbour_is_not_merged(self, bench: Bench) -> None:
        """A block that a stream still uses stays apart."""
        waiting, freed = bench.malloc(mib(9)), bench.malloc(mib(9))
        bench.allocator.record_stream(waiting, 1)
        bench.allocator.set_events_pending(True)
        bench.free(waiting, freed)

        bench.malloc(mib(18))

        assert bench.reserved == mib(20) + mib(18)
