"""Has an upload judged in a process of its own with limits, and turns failures into errors.

What comes back is JSON and is decoded into our own types; nothing is unpickled. An upload that
kills its process is the caller's fault: the same file would kill the next one, so the answer is
remembered and nobody tries again.
"""

from __future__ import annotations

import io
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

import msgspec

from memgate.errors import MemgateError, ProcessLostError, UploadLimitError
from memgate.report import Estimate, Fit
from memgate.views import TimelineView
from memgate_worker.engines.messages import Failed
from memgate_worker.timelines import decode_run
from memgate_worker.uploads.host import Ended, UploadHost
from memgate_worker.uploads.process import OUT_OF_MEMORY
from memgate_worker.uploads.question import (
    Judged,
    JudgedFit,
    JudgedUpload,
    UploadFitQuestion,
    UploadQuestion,
)

#: what a process can be asked
_Question = UploadQuestion | UploadFitQuestion

_COMMAND = (sys.executable, "-P", "-m", "memgate_worker.uploads.process")

#: times the processor time that is allowed: a busy machine takes longer
_PATIENCE = 5

#: sent by people and supervisors: they say nothing about an upload
_FROM_OUTSIDE = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

_FEWER = "record fewer iterations, two or three suffice"


def judge_upload(
    upload: BinaryIO, question: UploadQuestion, host: UploadHost | None = None
) -> JudgedUpload:
    """Read an upload and answer, in a process with a memory limit and a deadline.

    It is a child of ``host``, if there is one: for programs that are asked more than once.

    Raises:
        MemgateError: the error that the process reports for an upload without an answer.
        UploadLimitError: if the upload exceeds a limit, or kills the process.
        ProcessLostError: if the process was ended from outside.
    """
    start = time.perf_counter()
    answer = _ask(upload, question, host)
    assert isinstance(answer, Judged)
    return _restore(answer, time.perf_counter() - start)


def fit_upload(
    upload: BinaryIO, question: UploadFitQuestion, host: UploadHost | None = None
) -> Fit:
    """Read a timeline file and answer for every GPU, in such a process.

    Raises what ``judge_upload`` raises.
    """
    answer = _ask(upload, question, host)
    assert isinstance(answer, JudgedFit)
    return Fit.model_validate_json(bytes(answer.fit))


def _ask(upload: BinaryIO, question: _Question, host: UploadHost | None) -> Judged | JudgedFit:
    asked, seconds = msgspec.json.encode(question), _PATIENCE * question.max_seconds
    with _as_file(upload) as file:
        try:
            ended = (host.ask if host else _ask_once)(asked, file, seconds)
        except TimeoutError:
            raise _too_slow(question) from None
    if ended.status != 0:
        raise _why_it_died(ended.status, question, ended.complaints.decode(errors="replace"))
    answer = msgspec.json.decode(ended.said, type=Judged | JudgedFit | Failed)
    if isinstance(answer, Failed):
        raise answer.error()
    return answer


@contextmanager
def _as_file(upload: BinaryIO) -> Iterator[BinaryIO]:
    """Return what a process can read as its standard input."""
    try:
        number = upload.fileno()
    except (OSError, io.UnsupportedOperation):
        with tempfile.TemporaryFile() as copy:
            shutil.copyfileobj(upload, copy)
            copy.seek(0)
            yield copy
        return
    if upload.seekable():  # the process begins where we are, and not where our buffer ends
        os.lseek(number, upload.tell(), os.SEEK_SET)
    yield upload


def _ask_once(question: bytes, file: BinaryIO, seconds: float) -> Ended:
    """Ask a process that is started for this question."""
    with subprocess.Popen(
        [*_COMMAND, question.decode()],
        stdin=file,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,  # Ctrl-C is for us, and we end it
    ) as process:
        try:
            said, complaints = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            raise TimeoutError from None
        finally:
            process.kill()  # on the way out, whatever the reason: nobody waits for its answer
    return Ended(process.returncode, said, complaints)


def _restore(answer: Judged, seconds: float) -> JudgedUpload:
    estimate = Estimate.model_validate_json(bytes(answer.estimate))
    total_ms = round(seconds * 1000)
    # the process's start, too, is a part of getting a timeline
    timings = {"trace": total_ms - estimate.timings_ms["replay"], "total": total_ms}
    view, run = bytes(answer.view), bytes(answer.run)
    return JudgedUpload(
        estimate=estimate.model_copy(update={"timings_ms": estimate.timings_ms | timings}),
        view=None if view == b"null" else TimelineView.model_validate_json(view),
        run=None if run == b"null" else decode_run(run),
    )


def _why_it_died(status: int, question: _Question, complaints: str) -> Exception:
    if status == OUT_OF_MEMORY:
        return UploadLimitError(
            "reading it takes more memory than a file of its size may: 150 MB, and three times the"
            " unpacked size of a trace, twelve times that of a snapshot, thirty times that of a"
            f" timeline file; {_FEWER}"
        )
    if status == -signal.SIGXCPU:
        return _too_slow(question)
    if -status in _FROM_OUTSIDE:
        return ProcessLostError("the process that read the upload was ended; ask again")
    if status < 0:
        name = signal.Signals(-status).name
        return UploadLimitError(f"reading it killed the process that did ({name}); {_FEWER}")
    return RuntimeError(f"reading an upload failed in its process: {complaints.strip()}")


def _too_slow(question: _Question) -> MemgateError:
    return UploadLimitError(
        f"reading it takes longer than {question.max_seconds:g} s of processor time; {_FEWER} (of"
        " workers, the limit is MEMGATE_UPLOAD_TIMEOUT_SECONDS)"
    )
