"""From a requested size to a block size and a segment size."""

from __future__ import annotations

import pytest

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.allocator.sizes import get_allocation_size, round_size
from tests.builders import mib


@pytest.mark.parametrize(
    ("size", "want_rounded"),
    [(1, 512), (511, 512), (512, 512), (513, 1024), (1024, 1024), (mib(10) - 1, mib(10))],
)
def test_sizes_are_rounded_up_to_512(size: int, want_rounded: int) -> None:
    """Every block is a multiple of 512 bytes."""
    assert round_size(size, parse_alloc_conf("")) == want_rounded


@pytest.mark.parametrize(
    ("size", "want_rounded"),
    [
        pytest.param(mib(1), mib(1), id="a power of two stays"),
        pytest.param(mib(1) + 1, mib(1.25), id="up to the next quarter"),
        pytest.param(mib(1.25), mib(1.25), id="a quarter stays"),
        pytest.param(mib(1.75) + 1, mib(2), id="up to the next power of two"),
        pytest.param(2048, 2048, id="not above 512 times the divisions: plain rounding"),
        pytest.param(2049, 2560, id="above it: quarters of 2048"),
        pytest.param(100, 512, id="small sizes stay small"),
    ],
)
def test_power2_divisions_round_up_to_fractions_of_a_power_of_two(
    size: int, want_rounded: int
) -> None:
    """With 4 divisions a size goes up to the next quarter between two powers of two."""
    assert round_size(size, parse_alloc_conf("roundup_power2_divisions:4")) == want_rounded


def test_power2_divisions_may_differ_by_size() -> None:
    """A list of divisions applies to the power of two that the size lies above."""
    config = parse_alloc_conf("roundup_power2_divisions:[1:2,2:4,>:0]")

    assert round_size(mib(1) + 1, config) == mib(1.5)
    assert round_size(mib(2) + 1, config) == mib(2.5)
    assert round_size(mib(4) + 1, config) == mib(4) + 512


def test_power2_divisions_of_huge_sizes_are_those_of_the_last_interval() -> None:
    """Sizes of 64 GiB and more use the setting for 32 GiB."""
    config = parse_alloc_conf("roundup_power2_divisions:2")

    assert round_size(mib(70 * 1024), config) == mib(96 * 1024)


@pytest.mark.parametrize(
    ("size", "want_segment"),
    [
        pytest.param(512, mib(2), id="small"),
        pytest.param(mib(1), mib(2), id="largest small"),
        pytest.param(mib(1) + 512, mib(20), id="smallest large"),
        pytest.param(mib(10) - 512, mib(20), id="largest that shares a segment"),
        pytest.param(mib(10), mib(10), id="its own segment"),
        pytest.param(mib(15), mib(16), id="rounded up to 2 MiB"),
    ],
)
def test_segment_sizes(size: int, want_segment: int) -> None:
    """Small requests share 2 MiB, middling ones 20 MiB, large ones get their own size."""
    assert get_allocation_size(size, parse_alloc_conf("")) == want_segment


def test_large_segment_size_replaces_the_20_mib() -> None:
    """The setting changes the segments of requests below 10 MiB and of no others."""
    config = parse_alloc_conf("large_segment_size_mb:64")

    assert get_allocation_size(mib(2), config) == mib(64)
    assert get_allocation_size(mib(10), config) == mib(10)
    assert get_allocation_size(512, config) == mib(2)
