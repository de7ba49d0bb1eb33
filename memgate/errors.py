"""Every exception memgate raises on purpose.

    MemgateError(code, message)
    |- InputError               the caller can fix it: exit 2 on the command line, 422 over HTTP
    |  |- AllocatorConfigError    a PYTORCH_ALLOC_CONF string that PyTorch would refuse too
    |  |- VectorFormatError       not a file of allocator vectors, or a broken one
    |  |- TraceFormatError        not a profiler trace, or a broken one
    |  |- TraceIncompleteError    a profiler trace that lacks something; names the profiler's flag
    |  |- UnsupportedTraceError   a profiler trace of a kind that is not analysed
    |  |- NotModelledError        a job that calls what the phantom engine has no stand-in for
    |  |- NoKernelsError          a GPU that the runtime's PyTorch has no kernels for
    |  |- NotInCatalogueError     a GPU name that the catalogue does not have
    |  |- RuntimeMissingError     a runtime that is not installed, or cannot be on this platform
    |  |- ExtrapolationError      a job whose memory at other batch sizes cannot be told
    |  |- HostMemoryError         a job that needs more memory of this machine than it may take
    |  `- TimelineError           events that no program could have made (a free of an unknown id)
    |- EngineError              a job could not be run to its end, for reasons of its own
    |  `- ProcessLostError        its process was killed: another try may do
    `- SimulationError          the replay contradicts itself: our bug, never the caller's

A simulated out-of-memory and "does not fit" are results (``OutOfMemory``), never exceptions.
Where an error becomes an exit status or an HTTP status is the business of the doors.
"""

from __future__ import annotations


class MemgateError(Exception):
    """Base of all errors raised on purpose; ``code`` is stable and meant for machines."""

    code = "MEMGATE_ERROR"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class InputError(MemgateError):
    """Something the caller gave is wrong; the message names it, the rule and the next step."""

    code = "BAD_INPUT"


class AllocatorConfigError(InputError):
    """An allocator setting string that PyTorch refuses."""

    code = "BAD_ALLOCATOR_CONFIG"


class VectorFormatError(InputError):
    """A vector file that cannot be read as one."""

    code = "BAD_VECTOR_FILE"


class TraceFormatError(InputError):
    """A file that is no profiler trace, or a broken one."""

    code = "BAD_TRACE"


class TraceIncompleteError(InputError):
    """A trace whose profiler was not told to record what is needed."""

    code = "INCOMPLETE_TRACE"


class UnsupportedTraceError(InputError):
    """A trace of a kind that is not analysed."""

    code = "UNSUPPORTED_TRACE"


class NotModelledError(InputError):
    """A job that calls what the phantom engine has no stand-in for."""

    code = "NOT_MODELLED"


class NoKernelsError(InputError):
    """A GPU that the PyTorch of a runtime was not built for: the job would fail there, too."""

    code = "NO_KERNELS"


class NotInCatalogueError(InputError):
    """A GPU name that the catalogue does not have."""

    code = "UNKNOWN_GPU"


class RuntimeMissingError(InputError):
    """A runtime that the operator has not installed, or that cannot run on this platform."""

    code = "RUNTIME_MISSING"


class ExtrapolationError(InputError):
    """Runs at two batch sizes that do not match."""

    code = "NOT_EXTRAPOLATED"


class HostMemoryError(InputError):
    """A job that needs more memory of this machine than there is, or than it may take."""

    code = "HOST_MEMORY_EXCEEDED"


class TimelineError(InputError):
    """An event sequence that contradicts itself."""

    code = "BAD_TIMELINE"


class EngineError(MemgateError):
    """A job failed while an engine ran it."""

    code = "JOB_FAILED"


class ProcessLostError(EngineError):
    """The process that ran a job was killed from outside; the job may do better another time."""

    code = "PROCESS_LOST"


class SimulationError(MemgateError):
    """The simulator broke one of its own rules."""

    code = "SIMULATION_BROKEN"
