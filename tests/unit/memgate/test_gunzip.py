"""Gzip files: several members, what follows them, and what is cut off."""

from __future__ import annotations

import gzip
import io
import time
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memgate.errors import InputError
from memgate.gunzip import read_unpacked
from memgate.units import MIB

#: without the time of day
_pack = partial(gzip.compress, mtime=0)


def _read(data: bytes, **more: float) -> bytes:
    options = {"max_bytes": 100 * MIB} | more
    return bytes(read_unpacked(io.BytesIO(data), error=InputError, what="trace", **options))  # type: ignore[arg-type]


def _refuse(data: bytes, **more: float) -> str:
    with pytest.raises(InputError) as raised:
        _read(data, **more)
    return raised.value.message


@given(
    st.lists(st.binary(max_size=200_000), min_size=1, max_size=5),
    st.integers(min_value=0, max_value=200_000),
)
def test_members_are_joined(contents: list[bytes], num_zeros: int) -> None:
    """As ``gzip`` does it; zeros may fill up the end."""
    packed = b"".join(map(_pack, contents)) + bytes(num_zeros)

    assert _read(packed) == b"".join(contents) == gzip.decompress(packed)


@pytest.mark.parametrize("size", [0, 1, 65_400, 65_536, 3 * MIB])
@pytest.mark.parametrize("junk", [b"J", b"JUNK", b"\x1f", b"\0\0J", bytes(2 * MIB) + b"J"])
def test_junk_after_the_content_is_refused(size: int, junk: bytes) -> None:
    """By its offset: a file that was overwritten by a shorter one ends like this."""
    packed = _pack(b"a" * size)
    at = len(packed) + len(junk.rstrip(b"J")) if b"\0" in junk else len(packed)

    assert f"not gzip follows the content, at byte {at:,}; remove it" in _refuse(packed + junk)


def test_the_rest_of_a_large_file_is_not_copied_again_and_again() -> None:
    """A hundred megabytes behind a small member are refused at once."""
    start = time.process_time()

    assert "at byte 22;" in _refuse(_pack(b"{}") + b"J" * 100 * MIB)
    assert time.process_time() - start < 5


@pytest.mark.parametrize(
    ("data", "want_message"),
    [
        (_pack(b"") * 1000, "has more than 101 parts, as no trace has"),
        (_pack(b" " * 4_000_000) * 100, "unpacks to more than 200 times its size"),
        (_pack(b"{}")[:-1], "the gzip file is cut off"),
        (_pack(b"{}") * 2 + _pack(b"{}")[:-9], "the gzip file is cut off"),
        (_pack(b"{}") + b"\x1f\x8b", "the gzip file is cut off"),
        (_pack(b"{}")[:-8] + bytes(8), "the gzip file is broken"),
        (_pack(b"{}") + b"\x1f\x8bJUNK", "the gzip file is broken"),
    ],
)
def test_files_that_no_tool_makes_are_refused(data: bytes, want_message: str) -> None:
    """Early, and by name: members of spaces took all the time there was."""
    assert want_message in _refuse(data, max_ratio=200)


def test_a_file_in_many_parts_is_read() -> None:
    """As tools write it that pack in parts, of 64 KiB each."""
    content = bytes(65_280)

    assert _read(_pack(content) * 300) == content * 300
