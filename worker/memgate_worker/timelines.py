"""TracedJob <-> bytes, in the store, so that one run answers many questions, or between processes.

A stored record names its run. One that cannot be read, or is of another run, counts as absent: the
job is run again, and the new record replaces it.
"""

from __future__ import annotations

import zlib
from typing import Any

import msgspec

from memgate.report import Reason
from memgate.run_key import RunKey
from memgate_worker.engines.traced import TracedJob

#: fast: repetitions are found at any level
_COMPRESSION = 1


class _Record(msgspec.Struct, frozen=True):
    #: digest of the run's key, and so of its layout
    run: str
    traced: msgspec.Raw


def pack(key: RunKey, traced: TracedJob) -> bytes:
    """Turn the run of a key into bytes."""
    record = _Record(run=key.digest(), traced=msgspec.Raw(encode_run(traced)))
    return zlib.compress(msgspec.json.encode(record), _COMPRESSION)


def unpack(key: RunKey, packed: bytes) -> TracedJob | None:
    """Turn bytes back into the run of a key; None if they are anything else."""
    try:
        record = msgspec.json.decode(zlib.decompress(packed), type=_Record)
        if record.run != key.digest():
            return None
        return decode_run(record.traced)
    except (zlib.error, msgspec.DecodeError, UnicodeDecodeError):
        return None


def encode_run(traced: TracedJob) -> bytes:
    """Turn a run into JSON."""
    return msgspec.json.encode(traced, enc_hook=_to_plain)


def decode_run(encoded: bytes | msgspec.Raw) -> TracedJob:
    """Turn JSON back into a run.

    Raises:
        msgspec.DecodeError: if it is anything else.
    """
    return msgspec.json.decode(encoded, type=TracedJob, dec_hook=_from_plain)


def _to_plain(value: Any) -> Any:
    assert isinstance(value, Reason)
    return value.model_dump()


def _from_plain(kind: type, value: Any) -> Any:
    assert kind is Reason
    return Reason.model_validate(value)
