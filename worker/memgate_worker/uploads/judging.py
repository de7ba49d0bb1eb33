"""The bytes of an upload -> its estimate, in this process; ``process`` calls it within limits.

What reads a kind of upload is imported when one comes: a process reads one, and importing all of it
takes longer than reading most files.
"""

from __future__ import annotations

from collections.abc import Callable
from io import BufferedReader

from memgate.errors import InputError
from memgate.file_kinds import FileKind, find_file_kind
from memgate.report import Fit
from memgate.timeline_file.document import ReadLimits
from memgate.views import view_timeline
from memgate_worker.timings import TimedEstimate
from memgate_worker.uploads.question import JudgedUpload, UploadFitQuestion, UploadQuestion

#: of real traces, reading takes 2.5 to 2.9 times their size
_TIMES_TRACE = 3
#: of snapshots, 7 to 10 times; their documents have a limit of their own, and as much again becomes
#: of them
_TIMES_SNAPSHOT = 12
_TIMES_DOCUMENT = 2
#: of timeline files, 14 times: an event is ten bytes there
_TIMES_TIMELINE = 30
#: for the interpreter, and for the answer
_CONSTANT_BYTES = 150_000_000


def allowed_memory_bytes(kind: FileKind, unpacked_bytes: int) -> int:
    """Return how much memory a process may take for an upload of this kind and size."""
    if kind is FileKind.SNAPSHOT:
        from memgate.snapshots.unpickling import MAX_DOCUMENT_BYTES

        most = unpacked_bytes + _TIMES_DOCUMENT * MAX_DOCUMENT_BYTES
        return min(_TIMES_SNAPSHOT * unpacked_bytes, most) + _CONSTANT_BYTES
    if kind is FileKind.TIMELINE:
        most = min(unpacked_bytes, ReadLimits().max_unpacked_bytes)
        return _TIMES_TIMELINE * most + _CONSTANT_BYTES
    return _TIMES_TRACE * unpacked_bytes + _CONSTANT_BYTES


def import_all_kinds() -> None:
    """Import what reads each kind of upload, for a process that is kept for many."""
    import memgate_worker.devices
    import memgate_worker.engines.profile.analysis
    import memgate_worker.recordings
    import memgate_worker.snapshots  # noqa: F401


def judge(
    stream: BufferedReader,
    question: UploadQuestion,
    allow_memory: Callable[[int], None] = lambda _: None,
) -> JudgedUpload:
    """Read an upload and answer; ``allow_memory`` is told how much that may take.

    It is told twice: before the upload is unpacked, and before it is decoded.

    Raises:
        InputError: if it is neither a trace, a snapshot nor a timeline, or lacks something.
        UnsupportedTraceError: if it is of a kind that is not analysed.
    """
    kind = find_file_kind(stream.peek())

    def on_unpacked(num_bytes: int) -> None:
        allow_memory(allowed_memory_bytes(kind, num_bytes))

    on_unpacked(question.max_bytes)
    answer = {FileKind.SNAPSHOT: _snapshot, FileKind.TIMELINE: _timeline}.get(kind, _trace)
    said, traced, needs = answer(stream, question, on_unpacked)
    if question.wants_run:
        return JudgedUpload(estimate=said, run=traced)
    oom_event = said.oom.event if said.oom else None
    view = view_timeline(traced.timeline, needs.ample, oom_event=oom_event)
    return JudgedUpload(estimate=said, view=view)


def judge_fit(
    stream: BufferedReader,
    question: UploadFitQuestion,
    allow_memory: Callable[[int], None] = lambda _: None,
) -> Fit:
    """Read a timeline file and answer for every GPU; ``allow_memory`` as ``judge`` tells it.

    Raises:
        InputError: if it is not a timeline file, or breaks a rule.
    """
    kind = find_file_kind(stream.peek())
    if kind is not FileKind.TIMELINE:
        raise InputError(f"fit needs a job spec or a timeline file; ask about a {kind} GPU by GPU")

    def on_unpacked(num_bytes: int) -> None:
        allow_memory(allowed_memory_bytes(kind, num_bytes))

    on_unpacked(question.max_bytes)
    from memgate_worker.recordings import fit_recording

    return fit_recording(
        stream,
        alloc_conf=question.alloc_conf,
        max_bytes=question.max_bytes,
        on_unpacked=on_unpacked,
    )


def _trace(
    stream: BufferedReader, question: UploadQuestion, on_unpacked: Callable[[int], None]
) -> TimedEstimate:
    from memgate_worker.devices import estimate_devices
    from memgate_worker.engines.profile.analysis import analyze_trace

    traced = analyze_trace(
        stream,
        question.target.gpu,
        alloc_conf=question.alloc_conf,
        without=question.without,
        device=question.device,
        inference=question.inference,
        max_bytes=question.max_bytes,
        on_unpacked=on_unpacked,
    )
    return estimate_devices(traced, question.target)


def _snapshot(
    stream: BufferedReader, question: UploadQuestion, on_unpacked: Callable[[int], None]
) -> TimedEstimate:
    from memgate_worker.snapshots import estimate_snapshot

    if question.without:
        rules = ", ".join(question.without)
        raise InputError(f"rules ({rules}) are for traces of a CPU; a snapshot needs none")
    if question.inference:
        raise InputError("inference is for traces; a snapshot does not tell what the job did")
    return estimate_snapshot(
        stream,
        question.target,
        device=question.device,
        alloc_conf=question.alloc_conf,
        max_bytes=question.max_bytes,
        on_unpacked=on_unpacked,
    )


def _timeline(
    stream: BufferedReader, question: UploadQuestion, on_unpacked: Callable[[int], None]
) -> TimedEstimate:
    from memgate_worker.recordings import estimate_recording

    _refuse_device(question)
    if question.without:
        rules = ", ".join(question.without)
        raise InputError(f"rules ({rules}) are for traces of a CPU; a timeline needs none")
    if question.inference:
        raise InputError("inference is for traces; a timeline says itself what the job did")
    return estimate_recording(
        stream,
        question.target,
        alloc_conf=question.alloc_conf,
        max_bytes=question.max_bytes,
        on_unpacked=on_unpacked,
    )


def _refuse_device(question: UploadQuestion) -> None:
    if question.device is not None:
        raise InputError(
            f"device is {question.device}: only a memory snapshot has several; leave it out"
        )
