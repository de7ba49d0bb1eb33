"""The caching allocator with ``expandable_segments:True``."""

from __future__ import annotations

from collections.abc import Callable

from memgate.allocator.device import AddressPolicy
from tests.builders import Bench, mib

MakeBench = Callable[..., Bench]


class TestExpandableSegments:
    """``expandable_segments:True``."""

    CONF = "expandable_segments:True"

    def test_memory_comes_in_pages(self, make_bench: MakeBench) -> None:
        """2 MiB at a time in the small pool, 20 MiB in the large one."""
        bench = make_bench(self.CONF)
        bench.malloc(512)
        bench.malloc(mib(25))

        assert bench.segment_events == [
            ("segment_map", mib(2), 0),
            ("segment_map", mib(40), 0),
        ]
        assert bench.stats.all.segment == 0

    def test_a_segment_grows_where_a_free_tail_is_too_short(self, make_bench: MakeBench) -> None:
        """Free memory at the end is used, and only the rest is mapped."""
        bench = make_bench(self.CONF)
        bench.malloc(mib(10))

        bench.malloc(mib(25))

        assert bench.reserved == mib(40)

    def test_blocks_split_at_512_bytes_whatever_their_size(self, make_bench: MakeBench) -> None:
        """There are no slivers of up to 1 MiB."""
        bench = make_bench(self.CONF)
        bench.malloc(mib(15))

        assert bench.allocated == mib(15)

    def test_free_pages_go_back_even_if_a_neighbour_is_in_use(self, make_bench: MakeBench) -> None:
        """Only whole pages inside the free part are unmapped."""
        bench = make_bench(self.CONF)
        first, _ = bench.malloc(mib(50)), bench.malloc(mib(50))
        bench.free(first)

        bench.allocator.empty_cache()

        assert bench.segment_events[-1] == ("segment_unmap", mib(40), 0)
        assert bench.reserved == mib(60)

    def test_a_gap_is_mapped_again_first(self, make_bench: MakeBench) -> None:
        """The lowest address where a request fits is filled before the end grows."""
        bench = make_bench(self.CONF)
        first, _ = bench.malloc(mib(50)), bench.malloc(mib(50))
        first_ptr = first.ptr
        bench.free(first)
        bench.allocator.empty_cache()

        assert bench.malloc(mib(45)).ptr == first_ptr
        assert bench.reserved == mib(100)

    def test_a_free_piece_in_the_middle_of_a_page_stays(self, make_bench: MakeBench) -> None:
        """Pages that are partly in use on both sides cannot go."""
        bench = make_bench(self.CONF)
        _, middle, _ = (bench.malloc(mib(15)) for _ in range(3))
        bench.free(middle)

        bench.allocator.empty_cache()

        assert bench.reserved == mib(60)

    def test_an_empty_segment_disappears(self, make_bench: MakeBench) -> None:
        """Once all pages are gone, its addresses are free for the next one."""
        bench = make_bench(self.CONF, address_policy=AddressPolicy.REUSE)
        block = bench.malloc(mib(30))
        assert block.expandable_segment is not None
        address = block.expandable_segment.address_of(block.ptr)
        bench.free(block)

        bench.allocator.empty_cache()

        assert bench.allocator.snapshot() == ()
        again = bench.malloc(mib(50))
        assert again.expandable_segment is not None
        assert again.expandable_segment.address_of(again.ptr) == address

    def test_a_full_device_unmaps_and_tries_again(self, make_bench: MakeBench) -> None:
        """Pages of another stream make room."""
        bench = make_bench(self.CONF, capacity=mib(100))
        bench.cached(mib(60), stream=1)

        bench.malloc(mib(80))

        assert bench.reserved == mib(80)
        assert bench.stats.num_alloc_retries == 1

    def test_out_of_memory_while_growing_keeps_what_was_there(self, make_bench: MakeBench) -> None:
        """The message does not advise what is already set."""
        bench = make_bench(self.CONF, capacity=mib(100))
        bench.malloc(mib(50))

        oom = bench.malloc_fails(mib(60))

        assert bench.reserved == mib(60)
        assert oom.message.endswith("is reserved by PyTorch but unallocated.")

    def test_a_block_that_can_grow_counts_with_the_size_it_can_grow_to(
        self, make_bench: MakeBench
    ) -> None:
        """A larger block between used ones is the tighter fit than the smaller one at the end."""
        bench = make_bench(self.CONF)
        between = bench.malloc(mib(20))
        bench.malloc(mib(30))
        between_ptr = between.ptr
        bench.free(between)

        assert bench.malloc(mib(5)).ptr == between_ptr

    def test_max_split_size_holds_back_no_pages(self, make_bench: MakeBench) -> None:
        """Oversize blocks of expandable segments are not given back one by one."""
        bench = make_bench(f"{self.CONF},max_split_size_mb:40", capacity=mib(200))
        bench.cached(mib(100), stream=0)

        bench.malloc(mib(150), stream=1)

        assert bench.stats.num_alloc_retries == 1

    def test_of_equal_blocks_the_older_range_is_taken_wherever_it_lies(
        self, make_bench: MakeBench
    ) -> None:
        """A shrunk case of the real allocator, its second range below the first."""
        bench = make_bench(self.CONF, capacity=mib(240), address_policy=AddressPolicy.DOWN)
        blocks = {
            number: bench.malloc(mib(size))
            for number, size in ((12, 10), (13, 10), (14, 60), (20, 10), (21, 120))
        }
        bench.malloc_fails(mib(100))
        blocks |= {number: bench.malloc(mib(10)) for number in (46, 47)}
        bench.free(blocks[21])
        bench.malloc(mib(60))
        bench.malloc_fails(mib(120))
        bench.malloc(mib(20))
        bench.free(blocks[47])

        bench.malloc(mib(10))

        sizes = [(part.total_size, part.allocated_size) for part in bench.allocator.snapshot()]
        assert sorted(sizes) == sorted(
            [(mib(40), mib(20)), (mib(160), mib(150)), (mib(20), mib(20))]
        )

    def test_addresses_run_out_before_memory(self, make_bench: MakeBench) -> None:
        """Where no stretch of an address range is long enough, a second one is reserved."""
        bench = make_bench(self.CONF, capacity=mib(100))
        blocks = [bench.malloc(mib(20)) for _ in range(5)]
        bench.free(blocks[0], blocks[2], blocks[4])

        bench.malloc(mib(60))

        assert bench.reserved == mib(100)
        assert len(bench.allocator.snapshot()) == 3
