"""Reading ``PYTORCH_ALLOC_CONF``: as the real parser of torch 2.14.1 reads it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from memgate.allocator.alloc_conf import parse_alloc_conf
from memgate.errors import AllocatorConfigError, UnsupportedAllocatorError
from memgate.units import MIB
from tests.conftest import DATA

#: what the real parser answered: the settings it read, or the error it raised (see data/README.md)
RECORDED: list[dict[str, Any]] = [
    json.loads(line) for line in (DATA / "alloc_conf.jsonl").read_text().splitlines()
]
#: read by PyTorch, refused by us: nothing simulates that backend
OTHER_BACKEND = [answer["config"] for answer in RECORDED if "cudaMallocAsync" in answer["config"]]
ACCEPTED = [answer for answer in RECORDED if answer["ok"] and answer["config"] not in OTHER_BACKEND]
REFUSED = [answer for answer in RECORDED if not answer["ok"]]


@pytest.mark.parametrize("answer", ACCEPTED, ids=lambda answer: repr(answer["config"]))
def test_what_pytorch_accepts_reads_the_same(answer: dict[str, Any]) -> None:
    """Each setting has the value that the real parser gave it."""
    config = parse_alloc_conf(answer["config"])

    for field in set(answer) - {"config", "ok", "backend"}:
        want = tuple(answer[field]) if isinstance(answer[field], list) else answer[field]
        assert getattr(config, field) == want, field


@pytest.mark.parametrize("answer", REFUSED, ids=lambda answer: repr(answer["config"]))
def test_what_pytorch_refuses_is_refused_with_its_words(answer: dict[str, Any]) -> None:
    """The error PyTorch raises is in ours, after the key."""
    with pytest.raises(AllocatorConfigError) as raised:
        parse_alloc_conf(answer["config"])

    words = answer["error"].strip().rstrip(".")
    missing_divisions = answer["config"] in (
        "roundup_power2_divisions:[256:2,512]",
        "roundup_power2_divisions:[256]",
    )
    if missing_divisions:  # PyTorch reads past the end and reports an internal failure
        words = "has no number of divisions"
    assert words in raised.value.message


def test_an_error_names_the_setting_and_the_key() -> None:
    """A person finds the wrong word among many."""
    with pytest.raises(AllocatorConfigError) as raised:
        parse_alloc_conf("expandable_segments:True,max_split_size_mb:7")

    assert raised.value.message == (
        "allocator setting 'expandable_segments:True,max_split_size_mb:7', max_split_size_mb:"
        " CachingAllocator option max_split_size_mb too small, must be >= 20"
    )


def test_an_unknown_key_is_answered_with_the_known_ones() -> None:
    """With the one that is near, if one is."""
    with pytest.raises(AllocatorConfigError, match=r"known keys: backend, expandable_segments, "):
        parse_alloc_conf("zzz:True")
    with pytest.raises(AllocatorConfigError, match=r"did you mean 'expandable_segments'\?") as near:
        parse_alloc_conf("expandable_segment:True")
    assert near.value.mistakes[0].near == ("expandable_segments",)


def test_a_long_setting_is_cut_in_the_message() -> None:
    """An error is one sentence, whatever was given."""
    with pytest.raises(AllocatorConfigError) as raised:
        parse_alloc_conf("max_split_size_mb:64," * 1000 + "x:1")

    assert len(raised.value.message) < 700


def test_expandable_pages_must_suit_the_device() -> None:
    """CUDA hands out physical memory in multiples of 2 MiB."""
    with pytest.raises(AllocatorConfigError, match="must be a multiple of 2"):
        parse_alloc_conf("large_segment_size_mb:15,expandable_segments:True")


@pytest.mark.parametrize("conf", OTHER_BACKEND)
def test_another_backend_is_not_supported(conf: str) -> None:
    """It is not silently simulated by another; and PyTorch takes it, so nobody's mistake."""
    with pytest.raises(UnsupportedAllocatorError, match="cudaMallocAsync is not simulated"):
        parse_alloc_conf(conf)


@pytest.mark.parametrize(
    ("conf", "want_words"),
    [
        ("max_split_size_mb:\u0664\u0660", "is not a whole number (PyTorch stops with: stoull)"),
        ("max_split_size_mb:" + "9" * 5000, "is out of range (PyTorch stops with: stoull)"),
        ("per_process_memory_fraction:1e-400", "is out of range (PyTorch stops with: stod)"),
        ("per_process_memory_fraction:1e400", "is out of range (PyTorch stops with: stod)"),
        ("per_process_memory_fraction:0x40", "is invalid, set it in [0.0, 1.0]"),
    ],
    ids=["Arabic digits", "too many digits", "vanishing", "exploding", "hexadecimal"],
)
def test_numbers_are_read_as_the_c_library_reads_them(conf: str, want_words: str) -> None:
    """As observed with the real parser."""
    with pytest.raises(AllocatorConfigError) as raised:
        parse_alloc_conf(conf)

    assert want_words in raised.value.message
    assert len(raised.value.message) < 300


def test_a_hexadecimal_fraction_is_a_number() -> None:
    """C's stod reads it, so PyTorch does."""
    assert parse_alloc_conf("per_process_memory_fraction:0x1p-1").per_process_memory_fraction == 0.5


def test_large_segment_size_is_also_the_default_slack() -> None:
    """``max_non_split_rounding_mb`` follows it unless set, in whatever order they stand."""
    assert parse_alloc_conf("large_segment_size_mb:64").max_non_split_rounding_size == 64 * MIB
    both = parse_alloc_conf("max_non_split_rounding_mb:65,large_segment_size_mb:64")
    assert both.max_non_split_rounding_size == 65 * MIB
