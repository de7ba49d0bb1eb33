"""What CUDA's kernel for sums takes, against what the phantom saw it take."""

from __future__ import annotations

import pytest

from memgate.blocks import MemoryBlock
from memgate.links import Call, LinkedBlock, LinkedSet
from memgate.plan import DeviceTraits
from memgate.reductions import column_sums, sum_buffers
from memgate.timeline import Phase
from memgate.trace import OpEvent

A100 = DeviceTraits(compute_capability=(8, 0), multiprocessors=108)


@pytest.mark.parametrize(
    ("num_rows", "num_columns", "want"),
    [
        (2048, 2048, (33_554_432, 64)),
        (2048, 256, (4_194_304, 8)),
        (2048, 1000, (16_384_000, 32)),
        (1024, 256, (2_097_152, 8)),
        (1020, 256, ()),  # too few rows
        (64, 256, ()),
        (8, 3, ()),
        (0, 256, ()),
        (1024, 221_184, ()),  # so many columns that there is one part for each
        (65_536, 1_048_576, ()),  # so many columns that all threads have one
    ],
)
def test_rows_are_divided_if_they_are_many(
    num_rows: int, num_columns: int, want: tuple[int, ...]
) -> None:
    """A number for each column, part and thread, and one for each block to wait with."""
    assert sum_buffers(num_rows, num_columns, A100) == want


def test_columns_that_are_odd_in_number_are_read_one_by_one() -> None:
    """Four at once, or two, only if all rows begin at such a place."""
    assert sum_buffers(65_536, 7, A100) == (4 * 7 * 32 * 4, 8)


@pytest.mark.parametrize(
    ("capability", "multiprocessors", "want"),
    [
        ((7, 5), 40, 20_971_520),  # a T4, as the phantom saw it
        ((8, 6), 28, 22_020_096),  # an RTX 3060
        ((9, 0), 132, 33_554_432),
        ((6, 0), 28, 29_360_128),  # older than any that is known
    ],
)
def test_a_gpu_with_fewer_threads_divides_less(
    capability: tuple[int, int], multiprocessors: int, want: int
) -> None:
    """So that each has a part."""
    device = DeviceTraits(compute_capability=capability, multiprocessors=multiprocessors)

    assert sum_buffers(2048, 2048, device) == (want, 64)


def _linked(
    sums: OpEvent, layer: str, *, node: str = "AddmmBackward0", tied: bool = True
) -> LinkedSet:
    forward = OpEvent(1, 2, 1, layer, None, None, (), ())
    calls = (
        Call(forward, Phase.FORWARD, 0, "", "", None),
        Call(sums, Phase.BACKWARD, 0, "", node, 0 if tied else None),
    )
    blocks = (
        LinkedBlock(MemoryBlock(0, 2048 * 1024, 1.5, 9, 1), 0, False),
        LinkedBlock(MemoryBlock(1, 64, 3.1, 3.2, 1), 1, True),
        LinkedBlock(MemoryBlock(2, 1024, 3.5, None, 1), 1, False),
        LinkedBlock(MemoryBlock(3, 1024, 3.6, None, 1), None, False),
    )
    return LinkedSet(calls=calls, blocks=blocks, diagnostics={})


def _sum(*dims: tuple[int, ...], dtype: str = "float") -> OpEvent:
    return OpEvent(3, 4, 1, "aten::sum", None, None, dims, (dtype,) * len(dims))


@pytest.mark.parametrize(
    ("sums", "layer", "want"),
    [
        (_sum((2048, 256)), "aten::linear", [4_194_304, 8]),
        (_sum((8, 256, 256)), "aten::add", [4_194_304, 8]),
        (_sum((2048, 512), dtype="c10::BFloat16"), "aten::linear", [8_388_608, 16]),
        (_sum(), "aten::linear", [4_194_304, 8]),
        (_sum(), "aten::add", []),  # of which the rows could be columns
        (_sum((256, 2048)), "aten::add", []),  # over another dimension
        (_sum(()), "aten::add", []),
    ],
)
def test_the_gradient_of_a_bias_is_summed_up_in_parts(
    sums: OpEvent, layer: str, want: list[int]
) -> None:
    """Rows come from what the layer made: batch sizes may be predicted, shapes are not."""
    plan = column_sums(_linked(sums, layer), [], A100)

    assert [block.size_bytes for block in plan] == want


def test_other_sums_take_next_to_nothing() -> None:
    """Of a loss, say; or nothing is known about them."""
    sums = _sum((2048, 256))

    assert column_sums(_linked(sums, "aten::linear", node="MeanBackward0"), [], A100) == []
    assert column_sums(_linked(sums, "aten::linear", tied=False), [], A100) == []
