"""TracedJob <-> bytes, so that one run answers many questions; and the name it is kept under."""

from __future__ import annotations

import hashlib
import json
import zlib
from typing import Any

import msgspec

from memgate.gpus import GpuSpec
from memgate.jobspec import JobSpec
from memgate.report import Reason
from memgate_worker.engines.traced import TracedJob

#: fast: what repeats is found at any level
_COMPRESSION = 1


def run_name(job: JobSpec, gpu: GpuSpec, engine: str, runtime: str) -> str:
    """Name what a run depends on: all of the job but its allocator, and the generation of the GPU.

    Capacity is not part of it, nor are the allocator's settings: replays answer for those. GPUs of
    a generation run the same kernels; the number of their multiprocessors changes the scratch of a
    few, by up to 3 % of the peak of the one job of four where it was seen at all.
    """
    document = job.model_dump(mode="json", by_alias=True, exclude={"allocator", "runtime"})
    document |= {"runtime": runtime, "engine": engine, "generation": gpu.generation}
    canonical = json.dumps(document, sort_keys=True)
    return hashlib.sha256(canonical.encode()).hexdigest()


def pack(traced: TracedJob) -> bytes:
    """Turn a traced job into bytes."""
    return zlib.compress(msgspec.json.encode(traced, enc_hook=_to_plain), _COMPRESSION)


def unpack(packed: bytes) -> TracedJob:
    """Turn bytes back into a traced job."""
    return msgspec.json.decode(zlib.decompress(packed), type=TracedJob, dec_hook=_from_plain)


def _to_plain(value: Any) -> Any:
    assert isinstance(value, Reason)
    return value.model_dump()


def _from_plain(kind: type, value: Any) -> Any:
    assert kind is Reason
    return Reason.model_validate(value)
