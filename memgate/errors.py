"""Every exception memgate raises on purpose, and whose fault each of them is.

    MemgateError(code, message)
    |- InputError               CALLER: something in the question is wrong; the message says what
    |  |- AllocatorConfigError    a PYTORCH_ALLOC_CONF string that PyTorch would refuse too
    |  |- VectorFormatError       not a file of allocator vectors, or a broken one
    |  |- TraceFormatError        not a profiler trace, or a broken one
    |  |- SnapshotFormatError     not a memory snapshot, or a broken or an unsafe one
    |  |- TimelineFileError       not a timeline file, or a broken, a newer or an unsafe one
    |  |- TraceIncompleteError    a profiler trace that lacks something; names the profiler's flag
    |  |- UploadLimitError        a file that takes more time or memory than one of its size may
    |  |- UnknownGpuError         a GPU name that the catalogue does not have
    |  `- TimelineError           events that no program could have made (a free of an unknown id)
    |- JobFailedError           JOB: the job itself would fail like this on a GPU
    |  `- NoKernelsError          its PyTorch has no kernels for that GPU
    |- UnsupportedError         UNSUPPORTED: we cannot run this kind of job; ours, never the job's
    |  |- UnsupportedJobError     our engines cannot run it, or our loop cannot train it
    |  |- NotWatchedError         a process of a command that we cannot watch, so it was stopped
    |  |- NotModelledError        it calls what the phantom engine has no stand-in for
    |  |- UnsupportedGpuError     a GPU that is not NVIDIA's
    |  |- UnsupportedAllocatorError  PyTorch takes this allocator setting; it is not simulated
    |  |- UnsupportedTraceError   a profiler trace of a kind that is not analysed
    |  |- ExtrapolationError      its memory at other batch sizes cannot be predicted
    |  |- LimitExceededError      its run exceeds a limit of ours; one of these two
    |  |  |- HostMemoryError         it needs more memory of this machine
    |  |  `- TimeLimitError          it takes longer
    |  `- SimulationError         the replay contradicts itself: our bug
    |- OperatorError            OPERATOR: something is not installed or not configured
    |  |- RuntimeMissingError     a runtime that is not installed, or cannot be on this platform
    |  |- RuntimeBrokenError      a runtime that is installed and does not start
    |  |- StandInsMissingError    what stands in for NVIDIA's libraries cannot be built for a torch
    |  |- CompilerMissingError    a job that compiles kernels, on a machine without a C compiler
    |  |- NotProtectedError       a command whose changes of files cannot be kept apart here
    |  |- SandboxError            code of a caller's that cannot be kept apart as it must be
    |  |- OwnGpusError            the file of the operator's own GPUs is wrong
    |  |- MissingExtraError       a package that an extra of memgate brings
    |  `- LibraryMissingError     a library that a job needs and its runtime lacks
    `- PassingError             PASSING: ask again
       |- ProcessLostError        the process that ran the job was killed from outside
       |- HubUnreachableError     a hub that the operator allows to ask does not answer
       `- TraceExpiredError       an uploaded trace that is no longer kept: upload it again

A simulated out-of-memory and "does not fit" are results (``OutOfMemory``), never exceptions.
Doors decide by ``fault`` alone: exit status, HTTP status, what is remembered, what a gate does.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self

from memgate.mistakes import Mistake, describe


class Fault(StrEnum):
    """Whose fault it is that there is no answer, and so what to do about it."""

    CALLER = "caller"
    """Fix the question."""
    JOB = "job"
    """Fix the job: it would fail on a GPU, too."""
    UNSUPPORTED = "unsupported"
    """Nothing to fix: memgate cannot run this kind of job."""
    OPERATOR = "operator"
    """The operator must install or configure something."""
    PASSING = "passing"
    """Ask again."""


class MemgateError(Exception):
    """Base of all errors raised on purpose; ``code`` is stable and meant for machines."""

    code = "MEMGATE_ERROR"
    fault = Fault.PASSING

    def __init__(self, message: str, mistakes: tuple[Mistake, ...] = ()) -> None:
        super().__init__(message)
        self.message = message
        #: each thing that is wrong, where the message names several or a door shows them separately
        self.mistakes = mistakes

    @classmethod
    def from_mistakes(cls, *mistakes: Mistake, what: str = "") -> Self:
        """Name mistakes; ``what`` says what they are in."""
        called = "things that memgate cannot do" if cls.fault is Fault.UNSUPPORTED else "mistakes"
        message = describe(mistakes, called=called)
        return cls(f"{what}: {message}" if what else message, mistakes)

    def about(self, what: object) -> Self:
        """Say in the message what the error is about, such as a file; return the error."""
        self.message = f"{what}: {self.message}"
        self.args = (self.message,)
        return self


class InputError(MemgateError):
    """Something the caller gave is wrong; the message names it, the rule and the next step."""

    code = "BAD_INPUT"
    fault = Fault.CALLER


class AllocatorConfigError(InputError):
    """An allocator setting string that PyTorch refuses."""

    code = "BAD_ALLOCATOR_CONFIG"


class VectorFormatError(InputError):
    """A vector file that cannot be read as one."""

    code = "BAD_VECTOR_FILE"


class TraceFormatError(InputError):
    """A file that is not a profiler trace, or a broken one."""

    code = "BAD_TRACE"


class SnapshotFormatError(InputError):
    """A file that is not a memory snapshot of PyTorch, or has more in it than plain values."""

    code = "BAD_SNAPSHOT"


class TimelineFileError(InputError):
    """A file that is not a timeline file, breaks a rule of the format, or is of a newer one."""

    code = "BAD_TIMELINE_FILE"


class TraceIncompleteError(InputError):
    """A trace whose profiler was not set to record what is needed."""

    code = "INCOMPLETE_TRACE"


class UploadLimitError(InputError):
    """A trace that takes more time or memory than one of its size may, or kills what reads it."""

    code = "UPLOAD_LIMIT_EXCEEDED"


class UnknownGpuError(InputError):
    """A GPU name that the catalogue does not have."""

    code = "UNKNOWN_GPU"


class TimelineError(InputError):
    """An event sequence that contradicts itself."""

    code = "BAD_TIMELINE"


class JobFailedError(MemgateError):
    """The job itself failed, and would fail on a GPU."""

    code = "JOB_FAILED"
    fault = Fault.JOB


class NoKernelsError(JobFailedError):
    """A GPU that the PyTorch of a runtime was not built for: the job would fail there, too."""

    code = "NO_KERNELS"


class UnsupportedError(MemgateError):
    """We cannot answer for this kind of job."""

    code = "UNSUPPORTED"
    fault = Fault.UNSUPPORTED


class UnsupportedJobError(UnsupportedError):
    """A job that our engines cannot run: our training loop fails with it, or a feature is missing.

    That says nothing about the job; the message has the original error and the way out.
    """

    code = "UNSUPPORTED_JOB"


class NotWatchedError(UnsupportedError):
    """A process of a command that imports torch and cannot be watched: it was stopped at once."""

    code = "NOT_WATCHED"


class NotModelledError(UnsupportedError):
    """A job that calls what the phantom engine has no stand-in for."""

    code = "NOT_MODELLED"


class UnsupportedGpuError(UnsupportedError):
    """A GPU that is not NVIDIA's: what a job takes there is not modelled."""

    code = "UNSUPPORTED_GPU"


class UnsupportedAllocatorError(UnsupportedError):
    """An allocator setting that PyTorch accepts but we do not simulate."""

    code = "UNSUPPORTED_ALLOCATOR"


class UnsupportedTraceError(UnsupportedError):
    """A trace of a kind that is not analysed."""

    code = "UNSUPPORTED_TRACE"


class ExtrapolationError(UnsupportedError):
    """Runs at two batch sizes that do not match."""

    code = "NOT_EXTRAPOLATED"


class LimitExceededError(UnsupportedError):
    """A valid job whose run exceeds a limit of ours; names the limit and what raises it."""

    code = "LIMIT_EXCEEDED"


class HostMemoryError(LimitExceededError):
    """A job whose run needs more memory of this machine than it may take."""

    code = "HOST_MEMORY_EXCEEDED"


class TimeLimitError(LimitExceededError):
    """A job whose run takes longer than it may."""

    code = "TIME_LIMIT_EXCEEDED"


class SimulationError(UnsupportedError):
    """The simulator broke one of its own rules."""

    code = "SIMULATION_BROKEN"


class OperatorError(MemgateError):
    """Something is not installed or not configured; the message says what installs it."""

    code = "NOT_CONFIGURED"
    fault = Fault.OPERATOR


class RuntimeMissingError(OperatorError):
    """A runtime that the operator has not installed, or that cannot run on this platform."""

    code = "RUNTIME_MISSING"


class RuntimeBrokenError(OperatorError):
    """A runtime that is installed and does not start; the message has what installs it again."""

    code = "RUNTIME_BROKEN"


class StandInsMissingError(OperatorError):
    """The stand-ins for NVIDIA's libraries cannot be built here; the message says what helps."""

    code = "STAND_INS_MISSING"


class CompilerMissingError(OperatorError):
    """Triton needs a C compiler to start what it generates, and there is none."""

    code = "COMPILER_MISSING"


class NotProtectedError(OperatorError):
    """A command was not run, since its changes of files cannot be kept apart on this machine."""

    code = "NOT_PROTECTED"


class SandboxError(OperatorError):
    """Code of a caller's was not run: the machine lacks the sandbox that the operator demands."""

    code = "SANDBOX_TOO_WEAK"


class OwnGpusError(OperatorError):
    """The file of the operator's own GPUs cannot be read, or something in it is wrong."""

    code = "BAD_GPUS_FILE"


class MissingExtraError(OperatorError, ImportError):
    """A package that is not installed; the message has the command that installs it."""

    code = "EXTRA_MISSING"

    @classmethod
    def of(cls, what: str, error: ModuleNotFoundError, extra: str) -> MissingExtraError:
        """Say which package something needs, and which extra of memgate brings it.

        Raises:
            ModuleNotFoundError: the same, if what is missing is a part of memgate: no extra has it.
        """
        package = (error.name or "").partition(".")[0]
        if package in ("", "memgate", "memgate_service", "memgate_worker"):
            raise error
        return cls(f"{what} needs {package}: pip install 'memgate[{extra}]'")


class LibraryMissingError(OperatorError):
    """A library that a job needs and its runtime lacks; the message says what brings it."""

    code = "LIBRARY_MISSING"


class PassingError(MemgateError):
    """There is no answer now; there may be one when asked again."""

    code = "TRY_AGAIN"
    fault = Fault.PASSING


class ProcessLostError(PassingError):
    """The process that ran a job was killed from outside; the job may succeed another time."""

    code = "PROCESS_LOST"


class HubUnreachableError(PassingError):
    """A hub did not give a model's configuration: the network's fault, or its own."""

    code = "HUB_UNREACHABLE"


class TraceExpiredError(PassingError):
    """An uploaded trace that is no longer kept when a worker looks for it."""

    code = "TRACE_EXPIRED"


_BASES: dict[Fault, type[MemgateError]] = {
    Fault.CALLER: InputError,
    Fault.JOB: JobFailedError,
    Fault.UNSUPPORTED: UnsupportedError,
    Fault.OPERATOR: OperatorError,
    Fault.PASSING: PassingError,
}


def restore_error(
    code: str, message: str, fault: Fault, mistakes: tuple[Mistake, ...] = ()
) -> MemgateError:
    """Rebuild an error that another process raised, from the parts that were sent.

    It gets the class above that has this code and fault. If there is none, as with a process of an
    older version, it gets the base class of its fault, and keeps its code.
    """
    for kind in _BASES.values():
        for candidate in (kind, *_subclasses(kind)):
            if (candidate.code, candidate.fault) == (code, fault):
                return candidate(message, mistakes)
    error = _BASES[fault](message, mistakes)
    error.code = code
    return error


def _subclasses(kind: type[MemgateError]) -> list[type[MemgateError]]:
    """Return the classes of this module below one; those elsewhere take other arguments."""
    found = [sub for sub in kind.__subclasses__() if sub.__module__ == __name__]
    return found + [below for sub in found for below in _subclasses(sub)]
