"""What a verdict says about parts of GPUs, and about several GPUs."""

from __future__ import annotations

import pytest

from memgate.decision import Decision
from memgate.explanation import Sizes, explain
from memgate.placement import Advice, Room, combine, explain_rooms, explain_unplaced
from memgate.units import GIB

_NEEDS, _LEAST = 16 * GIB, 15 * GIB


def make_room(gpu: str, available: int, *, declared_by: str = "", is_share: bool = False) -> Room:
    """Make a place with so much memory, in GiB, and decide about a job of 15 to 16 GiB."""
    sizes = Sizes(needs_bytes=_NEEDS, least_bytes=_LEAST, available_bytes=available * GIB)
    if sizes.needs_bytes <= sizes.available_bytes:
        decision = Decision.ADMIT
    else:
        decision = Decision.UNCERTAIN if sizes.is_between else Decision.REJECT
    return Room(gpu, decision, sizes, declared_by, is_share)


_SMALL = make_room("t4", 14)
_TIGHT = make_room("v100-16", 15)
_LARGE = make_room("l4", 22)


@pytest.mark.parametrize(
    ("rooms", "want", "want_headline"),
    [
        pytest.param(
            [_LARGE, make_room("a10g", 22)],
            Decision.ADMIT,
            "fits on all of l4, a10g: needs 16.00 GiB, l4 has 22.00 GiB, a10g has 22.00 GiB",
            id="fits on both",
        ),
        pytest.param(
            [_SMALL, _LARGE],
            Decision.UNCERTAIN,
            "fits on l4, but may not fit on t4: needs 16.00 GiB, t4 has 14.00 GiB",
            id="fits on one",
        ),
        pytest.param(
            [_SMALL, _TIGHT],
            Decision.UNCERTAIN,
            "may not fit on t4, v100-16: needs 15.00 GiB to 16.00 GiB, depending on the CUDA"
            " context, t4 has 14.00 GiB, v100-16 has 15.00 GiB",
            id="may fit on one",
        ),
        pytest.param(
            [_SMALL, make_room("rtx-3060", 11)],
            Decision.REJECT,
            "does not fit on any of t4, rtx-3060: needs 16.00 GiB, t4 has 14.00 GiB, rtx-3060 has"
            " 11.00 GiB",
            id="fits on none",
        ),
        pytest.param(
            [make_room("l4", 4, declared_by="nvidia.com/gpumem")],
            Decision.REJECT,
            "does not fit in what is declared: needs 16.00 GiB, nvidia.com/gpumem declares"
            " 4.00 GiB",
            id="a part",
        ),
        pytest.param(
            [make_room("l4", 15, declared_by="annotation gpu-memory")],
            Decision.UNCERTAIN,
            "may not fit in what is declared: needs 15.00 GiB to 16.00 GiB, depending on the CUDA"
            " context, annotation gpu-memory declares 15.00 GiB",
            id="a part that may do",
        ),
        pytest.param(
            [make_room("l4", 20, declared_by="nvidia.com/gpumem")],
            Decision.ADMIT,
            "fits in what is declared: needs 16.00 GiB, nvidia.com/gpumem declares 20.00 GiB",
            id="a part that does",
        ),
        pytest.param(
            [
                make_room("l4", 4, declared_by="nvidia.com/gpumem"),
                make_room("a10g", 4, declared_by="nvidia.com/gpumem"),
            ],
            Decision.REJECT,
            "does not fit on any of l4, a10g: needs 16.00 GiB, nvidia.com/gpumem declares 4.00 GiB",
            id="the same part of either",
        ),
        pytest.param(
            [
                make_room("l4", 11, declared_by="p", is_share=True),
                make_room("t4", 7, declared_by="p", is_share=True),
            ],
            Decision.REJECT,
            "does not fit on any of l4, t4: needs 16.00 GiB, p declares 11.00 GiB of l4, p declares"
            " 7.00 GiB of t4",
            id="a share of either",
        ),
    ],
)
def test_all_places_count(rooms: list[Room], want: Decision, want_headline: str) -> None:
    """A job must fit in one of its places, and is in doubt unless it fits in all."""
    assert combine(rooms) is want
    assert explain_rooms(rooms).headline == want_headline


def test_one_whole_gpu_is_explained_as_everywhere() -> None:
    """The same words as of an estimate."""
    advice = Advice(largest_batch_size=32, smaller_batch="", fits_on=["l4", "a10g"])
    assert explain_rooms([_SMALL], why=["a note"], advice=advice) == explain(
        Decision.REJECT,
        "t4",
        _SMALL.sizes,
        why=["a note"],
        largest_batch_size=32,
        fits_on=["l4", "a10g"],
    )


@pytest.mark.parametrize(
    ("advice", "want"),
    [
        (Advice(), []),
        (Advice(declare="8772 MiB"), ["declare 8772 MiB or more"]),
        (
            Advice(largest_batch_size=1200, batch_gpu="l4"),
            ["batch size 1,200 fits on l4, the largest that does"],
        ),
        (Advice(largest_batch_size=0), ["no batch size fits"]),
        (
            Advice(smaller_batch="batch size 8 would be admitted"),
            ["batch size 8 would be admitted"],
        ),
        (Advice(fits_on=["l4", "a10g", "a10", "a30"]), ["as it is, it fits on l4, a10g, a10"]),
        (Advice(fits_on=["l4", "a10g"], cluster=["t4", "a10g"]), ["as it is, it fits on a10g"]),
        (
            Advice(fits_on=["l4"], cluster=["t4"]),
            ["as it is, it fits on l4", "it fits on no GPU of this cluster as it is"],
        ),
        (Advice(cluster=["t4"]), ["it fits on no GPU of this cluster as it is"]),
    ],
)
def test_what_would_help_is_named(advice: Advice, want: list[str]) -> None:
    """The most direct first; GPUs of the cluster before all others."""
    part = make_room("l4", 4, declared_by="nvidia.com/gpumem")
    assert explain_rooms([part], advice=advice).helps == want
    if not advice.declare and not advice.batch_gpu:
        assert explain_rooms([_SMALL], advice=advice).helps == want


def test_what_fits_needs_no_help() -> None:
    """Advice that is known all the same is not given."""
    advice = Advice(declare="1 MiB", largest_batch_size=1, fits_on=["l4"], cluster=["t4"])
    for rooms in ([_LARGE], [_LARGE, make_room("a10g", 22)]):
        assert explain_rooms(rooms, advice=advice).helps == []


def test_a_choice_of_gpus_can_be_narrowed() -> None:
    """Where one would do and another may not; where none does, naming one is of no use."""
    advice = Advice(name_gpu_by="a node selector")
    assert explain_rooms([_SMALL, _LARGE], advice=advice).helps == [
        "to choose the GPU, add a node selector"
    ]
    assert explain_rooms([_SMALL, make_room("rtx-3060", 11)], advice=advice).helps == []
    assert explain_rooms([_SMALL], advice=advice).helps == []


@pytest.mark.parametrize("is_part", [True, False])
def test_a_doubt_is_called_one(is_part: bool) -> None:
    """Sizes that fit beside "may not fit" would be a riddle; another GPU would not help."""
    sizes = Sizes(needs_bytes=_NEEDS, least_bytes=_LEAST, available_bytes=20 * GIB)
    doubted = Room("l4", Decision.UNCERTAIN, sizes, "nvidia.com/gpumem" if is_part else "")
    said = explain_rooms([doubted], why=["it calls cuFFT"], advice=Advice(fits_on=["a30"]))
    assert said.headline.endswith(" 20.00 GiB, but the estimate is in doubt")
    assert (said.why, said.helps) == (["it calls cuFFT"], [])


def test_without_a_gpu_nothing_is_compared() -> None:
    """What the job needs is said, and how to have it checked."""
    said = explain_unplaced(_NEEDS, "a node selector")
    assert said.text == (
        "needs 16.00 GiB; no GPU is named, so it was not checked; to have it checked, add a node"
        " selector"
    )
