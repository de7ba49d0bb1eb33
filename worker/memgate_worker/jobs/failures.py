"""An exception from a job's run -> the error that says whose fault it is. No torch here.

Two kinds of code are run, and they fail for different reasons. A script is the user's own: what it
raises, it would raise on a GPU. The training loop of a job spec is memgate's: if it fails, we do
not know how to train that model, and nothing is known about the job.
"""

from __future__ import annotations

import errno
import os
import re
import signal
import traceback
from collections.abc import Sequence
from pathlib import Path

from memgate.errors import (
    HostMemoryError,
    JobFailedError,
    MemgateError,
    NoKernelsError,
    NotModelledError,
    ProcessLostError,
    UnsupportedJobError,
)

#: how torch's message begins if there is no memory for a tensor on the CPU
NO_HOST_MEMORY = "DefaultCPUAllocator: "

#: what sockets fail with where there is no network namespace; see ``sandbox/filters.py``
_NO_SOCKETS = os.strerror(errno.EAFNOSUPPORT)

#: part of CUDA's message about a GPU that a program was not built for
NO_KERNELS = "no kernel image is available"

#: part of torch's messages about kernels that a kind of GPU does not have, which it asks the GPU
_KIND_OF_GPU = re.compile(r"compute capability|sm_?\d\d")

#: calls that record what a stream is given, to be launched again as a whole
_IS_OF_A_GRAPH = re.compile(r"cu(da)?(StreamBeginCapture|Graph)\w*")

#: torch's, for GPU memory; given by name, since torch is not imported here
_OUT_OF_GPU_MEMORY = "OutOfMemoryError"

_WAY_OUT = (
    "ask about the script that trains it (memgate estimate train.py --gpu GPU), or upload a"
    " profiler trace of it"
)

_OWN_RUNTIME = "a runtime of your own can have it, see: memgate runtimes --help"

#: sent by people, supervisors and a system out of memory, never by the process itself
_FROM_OUTSIDE = frozenset(
    {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT}
)


def explain_exception(
    error: Exception, *, script: Path | None, refused: Sequence[str], allowed_memory: str
) -> MemgateError:
    """Say whose fault an exception is.

    Args:
        error: what came out of the run.
        script: the user's own script that was run; None if it was our training loop.
        refused: calls of NVIDIA's libraries that the phantom refused before.
        allowed_memory: the limit on this machine's memory, in words.
    """
    if isinstance(error, MemgateError):  # raised where most was known about it
        return error
    first_line = next(iter(str(error).strip().splitlines()), "")  # some begin with an empty one
    said = f"{type(error).__name__}: {first_line}"
    if refused:
        return not_modelled(refused)
    if _NO_SOCKETS in str(error):
        return _no_sockets(said)
    return _explain_said(error, said, script, allowed_memory)


def _no_sockets(said: str) -> UnsupportedJobError:
    return UnsupportedJobError(
        "the job needs a network interface, loopback at least, and the sandbox that it runs in on"
        f" this machine has none: {said}; have the operator allow user namespaces"
        ": memgate doctor --sandbox says what is missing"
    )


def _explain_said(
    error: Exception, said: str, script: Path | None, allowed_memory: str
) -> MemgateError:
    if is_out_of_host_memory(error):
        _, _, asked = said.rpartition(NO_HOST_MEMORY)  # before it: a line of torch's source
        return HostMemoryError(
            f"this machine has no memory for the job's run ({asked}); it may take {allowed_memory}"
        )
    if NO_KERNELS in said:
        return NoKernelsError(f"the job failed: {said}")
    if isinstance(error, ModuleNotFoundError):
        return UnsupportedJobError(
            f"{script or 'the job'} needs the module {error.name!r}, which this runtime lacks;"
            f" {_OWN_RUNTIME}"
        )
    if isinstance(error, ImportError) and script is None:  # a library looked, and says what for
        said = " ".join(str(error).split()) or "an import"
        return UnsupportedJobError(
            f"the model needs something that this runtime lacks: {said}; {_OWN_RUNTIME}"
        )
    if script is not None:
        return JobFailedError(f"{script} failed{_where(error, script)}: {_last_line(error)}")
    if type(error).__name__ == _OUT_OF_GPU_MEMORY:
        return JobFailedError(f"the job needs more memory than any GPU has: {said}")
    if _KIND_OF_GPU.search(said):
        return JobFailedError(f"the job cannot run on this kind of GPU: {said}")
    return _our_loop_failed(said)


def explain_end(code: int, last_line: str, *, is_script: bool) -> MemgateError:
    """Say whose fault it is that a job's process ended with an exit status, or by a signal (< 0).

    A process that crashes in native code crashes in a stand-in for GPU code, or in CPU code: on a
    real GPU other code would run, so that says nothing about the job.
    """
    if code < 0:
        name = signal.Signals(-code).name
        if -code in _FROM_OUTSIDE:
            return ProcessLostError(
                f"the process that ran the job was ended by signal {name}: {last_line}; ask again."
                " If this machine had no memory left, allow a job less with --host-memory GIB"
                " (of workers: MEMGATE_JOB_MEMORY_BYTES), or use the phantom engine (--engine"
                " phantom), which needs little"
            )
        return UnsupportedJobError(
            f"the process that ran the job died of signal {name}: {last_line}; no GPU was there, so"
            f" this says nothing about one: {_WAY_OUT}"
        )
    if is_script and code == 0:
        return UnsupportedJobError(
            f"the script ended its own process ({last_line}) before memgate could see its steps;"
            " let it end in the usual way, or upload a profiler trace"
        )
    if is_script:
        return JobFailedError(f"the job failed: exit status {code}: {last_line}")
    return _our_loop_failed(f"exit status {code}: {last_line}")


#: what refused calls are made for, in the words of those who write jobs
_PURPOSES = (
    (re.compile(r"cudnn\w*RNN"), "recurrent layers by cuDNN (nn.LSTM, nn.GRU, nn.RNN)"),
    (re.compile(r"cudnn\w*CTCLoss"), "CTC losses by cuDNN"),
    (re.compile(r"cufft"), "Fourier transforms (torch.fft, torch.stft)"),
    (re.compile(r"cusolver|cublas\w*(getr|geqr|gels|matinv)"), "linear algebra (torch.linalg)"),
    (re.compile(r"cusparse"), "sparse matrices (torch.sparse)"),
    (re.compile(r"nccl"), "process groups of several GPUs"),
)


def not_modelled(refused: Sequence[str]) -> NotModelledError:
    """Name the calls that the phantom engine refused, and what jobs make them for."""
    if any(map(_IS_OF_A_GRAPH.fullmatch, refused)):
        return NotModelledError(
            "the job uses CUDA graphs (torch.compile with the mode reduce-overhead or max-autotune,"
            " torch.cuda.graph), whose memory of their own the phantom engine does not know; switch"
            " them off to have an answer for the job without them, which takes other memory: the"
            " modes default and max-autotune-no-cudagraphs, torchtitan's"
            " --training.disable_cuda_graphs, or the job's own option"
        )
    purposes = [words for pattern, words in _PURPOSES if any(map(pattern.match, refused))]
    what_for = f", for {' and '.join(purposes)}" if purposes else ""
    return NotModelledError(
        "the phantom engine cannot know this job's memory: it calls"
        f" {', '.join(refused)}, of NVIDIA's own libraries{what_for}"
    )


def nothing_trained(script: str, *, used_cuda: bool = True) -> UnsupportedJobError:
    """Say that a script ended without a step that we could see.

    It did not fail, so neither the job nor the question is known to be wrong: it may well train
    with an optimizer of its own.
    """
    if not used_cuda:
        return UnsupportedJobError(
            f"{script} never used CUDA: as it was started, it runs on the CPU. Have it use the GPU"
            " (model.to('cuda'), or an option of its own, such as --device cuda), and ask again"
        )
    return UnsupportedJobError(
        f"{script} ended without a step of an optimizer of torch.optim: nothing was trained that"
        " memgate can see; if it trains in another way, that is not supported yet"
    )


def is_out_of_host_memory(error: Exception) -> bool:
    """Say whether this machine ran out of memory, as far as can be known."""
    return isinstance(error, MemoryError) or NO_HOST_MEMORY in str(error)


def _our_loop_failed(said: str) -> UnsupportedJobError:
    return UnsupportedJobError(
        f"memgate does not know how to train this job by a spec: {said}. That is a limit"
        f" of memgate's, and says nothing about the job: {_WAY_OUT}"
    )


def _last_line(error: Exception) -> str:
    return traceback.format_exception_only(error)[-1].strip()


def _where(error: Exception, path: Path) -> str:
    """Name the last line of the script itself on the way to the error."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename) == path
    ]
    return f" in line {lines[-1]}" if lines else ""
