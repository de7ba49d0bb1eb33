"""The process that reads and judges one upload: a question as JSON in, the answer as JSON out.

``python -P -m memgate_worker.uploads.process QUESTION``, the upload on standard input. It limits
itself before it looks at the upload. No foreign code runs in it, so nothing can lift the limits:

- memory: by the upload's kind and unpacked size (``judging.allowed_memory_bytes``);
- processor time: what the question allows. Not the time on the clock: how busy the machine is does
  not decide about an upload.

``client`` starts it. The limits need Linux; elsewhere there is none. With ``--serve SOCKET`` it
reads no upload: it is kept, and a child of it does for each question (``host``).
"""

from __future__ import annotations

import gc
import os
import sys
from io import BufferedReader
from math import ceil
from pathlib import Path

import msgspec

from memgate.errors import InputError, MemgateError
from memgate_worker.engines.messages import Failed
from memgate_worker.lifeline import die_with_parent
from memgate_worker.own_gpus import load_own_gpus
from memgate_worker.timelines import encode_run
from memgate_worker.uploads.host import serve
from memgate_worker.uploads.judging import import_all_kinds, judge, judge_fit
from memgate_worker.uploads.question import (
    Judged,
    JudgedFit,
    UploadFitQuestion,
    UploadQuestion,
)

#: how the process ends that reaches its memory limit
OUT_OF_MEMORY = 75


class Limits:
    """What this process may take."""

    def __init__(self, max_seconds: float) -> None:
        """Limit the processor time, and find out what is taken before an upload is looked at."""
        import resource

        self._resource = resource
        pages = Path("/proc/self/statm").read_text().split()
        mapped_bytes, held_bytes = (int(count) * resource.getpagesize() for count in pages[:2])
        #: libraries are mapped, and hardly any of that is held: it counts as address space only
        self._unheld_bytes = mapped_bytes - held_bytes
        seconds = ceil(max_seconds)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))

    def allow_memory(self, num_bytes: int) -> None:
        """Lower the memory limit; it is never raised."""
        limit = self._unheld_bytes + num_bytes
        self._resource.setrlimit(self._resource.RLIMIT_AS, (limit, limit))


def answer(question: UploadQuestion | UploadFitQuestion) -> Judged | JudgedFit | Failed:
    """Judge what is on standard input, within limits."""
    allow = Limits(question.max_seconds).allow_memory if sys.platform == "linux" else _allow_all
    stream = sys.stdin.buffer
    assert isinstance(stream, BufferedReader)
    try:
        if isinstance(question, UploadFitQuestion):
            fit = judge_fit(stream, question, allow)
            return JudgedFit(fit=msgspec.Raw(fit.model_dump_json().encode()))
        said = judge(stream, question, allow)
    except MemgateError as error:
        return Failed.of(error)
    except OSError as error:  # only the upload is read: it is not a file, or its disk is broken
        return Failed.of(InputError(f"it cannot be read: {error.strerror or error}"))
    return Judged(
        estimate=msgspec.Raw(said.estimate.model_dump_json().encode()),
        view=msgspec.Raw(said.view.model_dump_json().encode() if said.view else b"null"),
        run=msgspec.Raw(encode_run(said.run) if said.run else b"null"),
    )


def _allow_all(_: int) -> None:
    """Take the machine as it is: limits on memory are Linux's."""


def main() -> None:
    """Answer the question that the command line has, or those that come to a socket."""
    if sys.platform == "linux":
        die_with_parent()
    gc.disable()  # it would walk over millions of events again and again; nothing here is a cycle
    if sys.argv[1] == "--serve":
        serve(int(sys.argv[2]), _answer, import_all_kinds)
    else:
        _answer(sys.argv[1].encode())


def _answer(question: bytes) -> None:
    try:
        load_own_gpus()  # answers name all GPUs on which a job fits
        said = answer(msgspec.json.decode(question, type=UploadQuestion | UploadFitQuestion))
        sys.stdout.buffer.write(msgspec.json.encode(said))
        sys.stdout.flush()
    except MemoryError:
        os._exit(OUT_OF_MEMORY)  # there is none left to say more


if __name__ == "__main__":
    main()
