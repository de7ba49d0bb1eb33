"""A stream of bytes, plain or gzip -> its content, as far as there may be."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import BinaryIO

from memgate.errors import InputError
from memgate.units import MIB, format_size

GZIP_MAGIC = b"\x1f\x8b"
_CHUNK_BYTES = MIB


#: of which the ratio does not matter
_FREE_BYTES = 4 * MIB


def read_unpacked(
    stream: BinaryIO,
    *,
    max_bytes: int,
    error: type[InputError],
    what: str,
    max_ratio: float = float("inf"),
    again: str = "write it again",
    smaller: str = "record less",
) -> bytearray:
    """Read all of a stream, unpacking gzip, and stop where it becomes too much.

    Args:
        stream: where it is.
        max_bytes: of the content.
        error: the class of what is raised.
        what: the content should be.
        max_ratio: to how many times its size a large file may unpack.
        again: what to do about a broken file.
        smaller: what to do about one that is too large.

    Raises:
        InputError: of the class ``error``, if it is broken, or unpacks to too much.
    """
    head = stream.read(len(GZIP_MAGIC))
    # grows in place: chunks that are joined at the end are there twice
    data = bytearray()
    try:
        for chunk, num_read in _gunzip(stream) if head == GZIP_MAGIC else _chunks(head, stream):
            data += chunk
            if len(data) > max_bytes:
                size = format_size(max_bytes)
                raise error(f"the {what} is larger than {size} unpacked; {smaller}")
            if len(data) > _FREE_BYTES + max_ratio * num_read:
                raise error(
                    f"the gzip file unpacks to more than {max_ratio:g} times its size, as no {what}"
                    f" does; {again}"
                )
    except zlib.error as problem:
        raise error(f"the gzip file is broken: {problem}; {again}") from None
    except EOFError:
        raise error(f"the gzip file is cut off; {again}") from None
    return data


def peek_unpacked(head: bytes, size: int) -> bytes:
    """Return the first bytes of a content, of which ``head`` is the beginning, plain or gzip."""
    if not head.startswith(GZIP_MAGIC):
        return head[:size]
    try:
        return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(head, size)
    except zlib.error:
        return b""


def _chunks(head: bytes, stream: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Yield parts of the content, and how much was read for all of them."""
    chunk, num_read = head, 0
    while chunk:
        num_read += len(chunk)
        yield chunk, num_read
        chunk = stream.read(_CHUNK_BYTES)


def _gunzip(stream: BinaryIO) -> Iterator[tuple[bytes, int]]:
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    packed = GZIP_MAGIC
    num_read = len(packed)
    while packed:
        yield unpacker.decompress(packed, _CHUNK_BYTES), num_read
        packed = unpacker.unconsumed_tail
        if not packed:
            packed = stream.read(_CHUNK_BYTES)
            num_read += len(packed)
    if not unpacker.eof:
        raise EOFError
