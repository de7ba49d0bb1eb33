"""What is asked about an upload, and the answer: what passes between the two processes, as JSON."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from memgate.gpus import GpuTarget
from memgate.report import Estimate
from memgate.trace import MAX_TRACE_BYTES
from memgate.views import TimelineView
from memgate_worker.engines.traced import TracedJob

#: what reading and judging an upload may take, unless an operator says otherwise
DEFAULT_SECONDS = 120.0


class UploadQuestion(msgspec.Struct, frozen=True, kw_only=True, tag="estimate"):
    """Will the job of an upload fit on that GPU?"""

    target: GpuTarget
    #: a ``PYTORCH_ALLOC_CONF`` string
    alloc_conf: str = ""
    #: rules of the orchestration that are left out
    without: tuple[str, ...] = ()
    #: one of those in a memory snapshot
    device: int | None = None
    #: the caller asks about inference, not about training
    inference: bool = False
    #: send the run back, for pictures; otherwise what a page shows
    wants_run: bool = False
    #: of the upload, unpacked
    max_bytes: int = MAX_TRACE_BYTES
    #: of processor time
    max_seconds: float = DEFAULT_SECONDS


class UploadFitQuestion(msgspec.Struct, frozen=True, kw_only=True, tag="fit"):
    """On which GPUs of the catalogue does the job of a timeline file fit?"""

    alloc_conf: str = ""
    max_bytes: int = MAX_TRACE_BYTES
    max_seconds: float = DEFAULT_SECONDS


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedUpload:
    """The answer."""

    estimate: Estimate
    #: unless the run was asked for
    view: TimelineView | None = None
    #: if it was asked for
    run: TracedJob | None = None


class Judged(msgspec.Struct, frozen=True, kw_only=True, tag="judged"):
    """The same, on its way from one process to the other."""

    estimate: msgspec.Raw
    view: msgspec.Raw = msgspec.Raw(b"null")
    run: msgspec.Raw = msgspec.Raw(b"null")


class JudgedFit(msgspec.Struct, frozen=True, kw_only=True, tag="fit"):
    """The answer about every GPU, on its way."""

    fit: msgspec.Raw
