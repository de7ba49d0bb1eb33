"""A stream of bytes, plain or gzip -> its content, as far as there may be."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import BinaryIO

from memgate.errors import InputError
from memgate.units import MIB, format_size

GZIP_MAGIC = b"\x1f\x8b"
_CHUNK_BYTES = MIB
#: read of a gzip file at once: what follows a member is copied, so it must not be much
_PACKED_BYTES = MIB // 16

#: of which the ratio does not matter
_FREE_BYTES = 4 * MIB

#: how many members a gzip file may have whatever is in them, and how much each holds on average if
#: there are more: tools that pack in parts make them of 64 KiB
_FREE_MEMBERS = 100
_MIN_MEMBER_BYTES = 10_000


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
    except _MembersError as problem:
        raise error(f"{problem}, as no {what} has; {again}") from None
    except _JunkError as problem:
        raise error(f"{problem}; remove it, or {again}") from None
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


class _JunkError(Exception):
    """Something follows the content."""


class _MembersError(Exception):
    """It is in too many parts."""


def _gunzip(stream: BinaryIO) -> Iterator[tuple[bytes, int]]:
    """Yield as ``_chunks`` does; a file may have several members, whose contents are joined."""
    packed, num_read = GZIP_MAGIC, len(GZIP_MAGIC)
    num_unpacked = num_members = 0
    unpacker = _make_unpacker()
    while packed:
        chunk = unpacker.decompress(packed, _CHUNK_BYTES)
        num_unpacked += len(chunk)
        yield chunk, num_read
        # where a member has ended, `unconsumed_tail` keeps what it was, without end
        packed = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
        if len(packed) < len(GZIP_MAGIC):
            more = stream.read(_PACKED_BYTES)
            packed += more
            num_read += len(more)
        if unpacker.eof and packed:
            if not packed.startswith(GZIP_MAGIC):
                _check_rest(packed, stream, num_read)
                return
            num_members += 1
            if num_members > _FREE_MEMBERS + num_unpacked // _MIN_MEMBER_BYTES:
                raise _MembersError(f"the gzip file has more than {num_members:,} parts")
            unpacker = _make_unpacker()
    if not unpacker.eof:
        raise EOFError


def _make_unpacker() -> zlib._Decompress:
    return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)


def _check_rest(rest: bytes, stream: BinaryIO, num_read: int) -> None:
    """Let zeros follow, with which tapes and some tools fill up, and nothing else."""
    while rest:
        if junk := rest.lstrip(b"\0"):
            at = num_read - len(junk)
            raise _JunkError(f"something that is not gzip follows the content, at byte {at:,}")
        rest = stream.read(_CHUNK_BYTES)
        num_read += len(rest)
