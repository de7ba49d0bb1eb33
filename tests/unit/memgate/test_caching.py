"""The ladder of the caching allocator: one rule a test, from nothing to out of memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.builders import Bench, mib

MakeBench = Callable[..., Bench]


def test_a_new_allocator_holds_nothing(bench: Bench) -> None:
    """Memory is taken when it is asked for."""
    assert bench.reserved == 0
    assert bench.allocator.snapshot() == ()


def test_one_small_block_reserves_2_mib(bench: Bench) -> None:
    """The small pool's segments are 2 MiB."""
    bench.malloc(100)

    assert bench.allocated == 512
    assert bench.reserved == mib(2)
    assert bench.stats.all.requested_bytes == 100


def test_one_freed_block_stays_reserved(bench: Bench) -> None:
    """A freed block is cached, not given back."""
    bench.free(bench.malloc(100))

    assert bench.allocated == 0
    assert bench.stats.all.requested_bytes == 0
    assert bench.reserved == mib(2)
    assert bench.stats.all.peak_allocated_bytes == 512


def test_a_freed_block_is_reused_for_the_same_size(bench: Bench) -> None:
    """No second segment is opened for a size that is cached."""
    bench.free(bench.malloc(mib(50)))
    bench.malloc(mib(50))

    assert bench.segment_events == [("segment_alloc", mib(50), 0)]


def test_small_blocks_share_a_segment(bench: Bench) -> None:
    """A segment is split among requests that fit into it."""
    for _ in range(4):
        bench.malloc(mib(0.5))

    assert bench.reserved == mib(2)


def test_blocks_between_1_and_10_mib_share_20_mib(bench: Bench) -> None:
    """Middling requests are packed into one 20 MiB segment."""
    bench.malloc(mib(9))
    bench.malloc(mib(9))

    assert bench.reserved == mib(20)


def test_small_requests_never_use_the_large_pool(bench: Bench) -> None:
    """A free block of the large pool does not serve a request of at most 1 MiB."""
    bench.cached(mib(2))

    bench.malloc(mib(1))

    assert bench.reserved == mib(22)


def test_the_best_fit_is_taken(bench: Bench) -> None:
    """The smallest block that is large enough serves a request."""
    bench.cached(mib(40), mib(30), mib(50))

    assert bench.malloc(mib(29)).size == mib(30)


def test_of_equal_blocks_the_older_segment_is_taken(bench: Bench) -> None:
    """Ties go to the segment that was opened first, in whatever order they were freed."""
    first, second = bench.malloc(mib(30)), bench.malloc(mib(30))
    first_ptr = first.ptr
    bench.free(second, first)

    assert bench.malloc(mib(30)).ptr == first_ptr


def test_a_large_block_is_split_only_if_more_than_1_mib_remains(bench: Bench) -> None:
    """15 MiB takes a 16 MiB segment whole and counts 16 MiB as allocated."""
    bench.malloc(mib(15))

    assert bench.allocated == bench.reserved == mib(16)


def test_a_remainder_just_above_1_mib_is_split_off(bench: Bench) -> None:
    """One byte more than 1 MiB over, in steps of 512, makes a block of its own."""
    bench.cached(mib(12))

    bench.malloc(mib(11) - 512)

    assert bench.allocated == mib(11) - 512


def test_a_small_block_is_split_down_to_512_bytes(bench: Bench) -> None:
    """Small blocks leave the smallest possible rest."""
    bench.malloc(mib(1))
    bench.malloc(mib(1) - 512)
    bench.malloc(512)

    assert bench.reserved == mib(2)


def test_freed_neighbours_merge(bench: Bench) -> None:
    """Two freed halves serve a request for the whole."""
    halves = [bench.malloc(mib(9)), bench.malloc(mib(9))]
    bench.free(*halves)

    bench.malloc(mib(18))

    assert bench.reserved == mib(20)


def test_a_freed_block_between_two_free_ones_joins_both(bench: Bench) -> None:
    """Three pieces become one block again."""
    blocks = [bench.malloc(mib(6)) for _ in range(3)]
    bench.free(blocks[0], blocks[2], blocks[1])

    assert [segment.num_blocks for segment in bench.allocator.snapshot()] == [1]
    assert bench.stats.all.inactive_split_bytes == 0


def test_blocks_of_different_segments_never_merge(bench: Bench) -> None:
    """Two free segments of 30 MiB do not serve 60 MiB."""
    bench.cached(mib(30), mib(30))

    bench.malloc(mib(60))

    assert bench.reserved == mib(120)


def test_a_free_piece_of_a_used_segment_is_inactive_split(bench: Bench) -> None:
    """What cannot be given back because a neighbour is in use is counted as stranded."""
    bench.malloc(mib(2))
    freed = bench.malloc(mib(3))
    bench.malloc(mib(4))
    bench.free(freed)

    assert bench.stats.all.inactive_split_bytes == mib(20) - mib(6)
    assert bench.stats.all.inactive_split == 2


def test_streams_do_not_share_blocks(bench: Bench) -> None:
    """A block freed on one stream serves no other."""
    bench.cached(mib(30), stream=1)

    bench.malloc(mib(30), stream=2)

    assert bench.reserved == mib(60)


class TestGivingBack:
    """The steps before out of memory is declared."""

    def test_empty_cache_gives_back_whole_segments_only(self, bench: Bench) -> None:
        """A segment with one used piece stays."""
        bench.malloc(mib(2))
        bench.cached(mib(40), 512)

        bench.allocator.empty_cache()

        assert bench.reserved == mib(20)
        assert bench.segment_events[-2:] == [
            ("segment_free", mib(40), 0),
            ("segment_free", mib(2), 0),
        ]

    def test_a_full_device_gets_its_cache_back_and_is_asked_again(
        self, make_bench: MakeBench
    ) -> None:
        """Cached segments make room for a request that fits nowhere else."""
        bench = make_bench(capacity=mib(100))
        bench.cached(mib(60))

        bench.malloc(mib(80))

        assert bench.reserved == mib(80)
        assert bench.stats.num_alloc_retries == 1
        assert bench.stats.num_ooms == 0

    def test_out_of_memory_leaves_what_is_in_use(self, make_bench: MakeBench) -> None:
        """The cache is gone after a failed request, the program's blocks are not."""
        bench = make_bench(capacity=mib(100))
        bench.malloc(mib(30))
        bench.cached(mib(40))

        bench.malloc_fails(mib(80))

        assert bench.reserved == bench.allocated == mib(30)
        assert bench.stats.num_ooms == 1

    def test_context_memory_is_not_to_be_had(self, make_bench: MakeBench) -> None:
        """What others hold counts against the device's capacity."""
        bench = make_bench(capacity=mib(100), context=mib(50))
        bench.malloc(mib(50))

        assert bench.malloc_fails(512).free_bytes == 0

    def test_the_message_is_pytorchs(self, make_bench: MakeBench) -> None:
        """A user of PyTorch recognises the text; the segment is what was tried."""
        bench = make_bench(capacity=mib(100))
        bench.malloc(mib(90))

        assert bench.malloc_fails(mib(9)).message.startswith(
            "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 100.00"
            " MiB of which 10.00 MiB is free. Of the allocated memory 90.00 MiB is allocated by"
            " PyTorch, and 0 bytes is reserved by PyTorch but unallocated. If reserved but"
        )


class TestMemoryFraction:
    """``set_per_process_memory_fraction`` and the setting of that name."""

    def test_a_fraction_limits_the_process(self, make_bench: MakeBench) -> None:
        """Half of the device is half of the device, though the rest is free."""
        bench = make_bench("per_process_memory_fraction:0.5", capacity=mib(100))
        bench.malloc(mib(50))

        oom = bench.malloc_fails(512)

        assert oom.allowed_bytes == mib(50)
        assert " 50.00 MiB is free. 50.00 MiB allowed; Of the" in oom.message

    def test_a_fraction_of_one_is_no_limit(self, make_bench: MakeBench) -> None:
        """1.0 lifts an earlier limit."""
        bench = make_bench("per_process_memory_fraction:0.5", capacity=mib(100))
        bench.allocator.set_memory_fraction(1.0)

        bench.malloc(mib(80))

        assert bench.malloc_fails(mib(80)).allowed_bytes is None

    def test_a_fraction_is_rounded_to_the_nearest_byte(self, make_bench: MakeBench) -> None:
        """0.1235 of 1000 bytes is 124 bytes."""
        bench = make_bench("per_process_memory_fraction:0.1235", capacity=1000)

        assert bench.malloc_fails(512).allowed_bytes == 124


class TestMaxSplitSize:
    """``max_split_size_mb`` and ``max_non_split_rounding_mb``."""

    def test_a_block_above_the_limit_serves_no_smaller_request(self, make_bench: MakeBench) -> None:
        """A request below the limit leaves an oversize block alone."""
        bench = make_bench("max_split_size_mb:64")
        bench.cached(mib(100))

        bench.malloc(mib(30))

        assert bench.reserved == mib(130)

    @pytest.mark.parametrize(
        ("size", "want_reserved"), [(mib(80), mib(180)), (mib(80) + 1, mib(100))]
    )
    def test_an_oversize_block_may_exceed_the_request_by_less_than_20_mib(
        self, make_bench: MakeBench, size: int, want_reserved: int
    ) -> None:
        """It is handed out whole, or not at all."""
        bench = make_bench("max_split_size_mb:64")
        bench.cached(mib(100))

        bench.malloc(size)

        assert bench.reserved == want_reserved

    def test_the_excess_is_a_setting(self, make_bench: MakeBench) -> None:
        """``max_non_split_rounding_mb`` allows a looser fit."""
        bench = make_bench("max_split_size_mb:64,max_non_split_rounding_mb:40")
        bench.cached(mib(100))

        bench.malloc(mib(61) + mib(10))

        assert bench.reserved == mib(100)

    def test_one_sufficient_oversize_block_is_given_back_first(self, make_bench: MakeBench) -> None:
        """Other cached segments stay, and no retry is counted."""
        bench = make_bench("max_split_size_mb:64", capacity=mib(300))
        bench.cached(mib(120), mib(100), mib(30))

        bench.malloc(mib(70))

        assert bench.segment_events[-2:] == [
            ("segment_free", mib(100), 0),
            ("segment_alloc", mib(70), 0),
        ]
        assert bench.stats.num_alloc_retries == 0
        assert bench.stats.oversize_segments == 2

    def test_else_several_go_the_largest_first(self, make_bench: MakeBench) -> None:
        """Oversize blocks are given back until their sum is enough."""
        bench = make_bench("max_split_size_mb:64", capacity=mib(300))
        bench.cached(mib(70), mib(100), mib(80), mib(30))

        bench.malloc(mib(150))

        assert bench.segment_events[-3:] == [
            ("segment_free", mib(100), 0),
            ("segment_free", mib(80), 0),
            ("segment_alloc", mib(150), 0),
        ]

    def test_if_they_are_not_enough_everything_goes(self, make_bench: MakeBench) -> None:
        """Oversize blocks that do not suffice are gone all the same, then the rest follows."""
        bench = make_bench("max_split_size_mb:64", capacity=mib(300))
        bench.cached(mib(70), mib(80), mib(60))

        bench.malloc(mib(280))

        assert bench.reserved == mib(280)
        assert bench.stats.num_alloc_retries == 1


class TestGarbageCollection:
    """``garbage_collection_threshold``."""

    CONF = "garbage_collection_threshold:0.5,per_process_memory_fraction:0.9"

    def test_old_segments_go_once_the_threshold_is_passed(self, make_bench: MakeBench) -> None:
        """Before a new segment is taken, the segments not used for longest are given back."""
        bench = make_bench(self.CONF, capacity=mib(1000))
        old, young = bench.malloc(mib(300)), bench.malloc(mib(200))
        bench.free(old, young)
        for _ in range(3):
            bench.cached(mib(200))

        bench.malloc(mib(400))

        assert bench.segment_events[-2:] == [
            ("segment_free", mib(300), 0),
            ("segment_alloc", mib(400), 0),
        ]
        assert bench.stats.num_alloc_retries == 0

    def test_below_the_threshold_nothing_goes(self, make_bench: MakeBench) -> None:
        """A process that holds little keeps its cache."""
        bench = make_bench(self.CONF, capacity=mib(1000))
        bench.cached(mib(100))

        bench.malloc(mib(200))

        assert bench.reserved == mib(300)

    def test_segments_in_use_are_never_collected(self, make_bench: MakeBench) -> None:
        """With nothing to collect the threshold has no effect."""
        bench = make_bench(self.CONF, capacity=mib(1000))
        bench.malloc(mib(500))

        bench.malloc(mib(100))

        assert bench.reserved == mib(600)

    def test_without_a_fraction_a_threshold_does_nothing(self, make_bench: MakeBench) -> None:
        """The threshold is a share of a limit: no limit, no collection."""
        bench = make_bench("garbage_collection_threshold:0.1", capacity=mib(1000))
        bench.cached(mib(500))

        bench.malloc(mib(400) - 1, stream=1)

        assert bench.reserved == mib(900)


class TestThrowOnCudamallocOom:
    """``throw_on_cudamalloc_oom``."""

    def test_a_hopeless_request_is_refused_before_any_cache_goes(
        self, make_bench: MakeBench
    ) -> None:
        """The cache survives, and the refusal is counted apart."""
        bench = make_bench("throw_on_cudamalloc_oom:True", capacity=mib(100))
        bench.cached(mib(60))

        oom = bench.malloc_fails(mib(80))

        assert bench.reserved == mib(60)
        assert (bench.stats.num_oom_rejections, bench.stats.num_ooms) == (1, 0)
        assert oom.message.endswith("per_process_memory_fraction limit. Requested size: 80.00 MiB")

    def test_a_fraction_is_looked_at_first(self, make_bench: MakeBench) -> None:
        """Under a memory fraction the cache is given back as ever."""
        conf = "throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.9"
        bench = make_bench(conf, capacity=mib(100))
        bench.cached(mib(60))

        bench.malloc(mib(80))

        assert bench.stats.num_oom_rejections == 0
