"""Why there is no answer about a command, and whose fault that is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from memgate.errors import (
    CompilerMissingError,
    HostMemoryError,
    JobFailedError,
    MemgateError,
    NoKernelsError,
    NotWatchedError,
    TimeLimitError,
    UnsupportedJobError,
)
from memgate_worker.engines.phantom.recorded import Raised
from memgate_worker.jobs.failures import (
    NO_HOST_MEMORY,
    NO_KERNELS,
    explain_end,
    not_modelled,
    nothing_trained,
)
from memgate_worker.recorder.command import Recorded
from memgate_worker.recorder.lookups import find_hidden_use
from memgate_worker.recorder.question import CommandQuestion

#: of a command's output, so many lines are quoted
_NUM_LINES = 8

#: of an exception's text, so much is quoted
_MAX_CHARACTERS = 300

#: raised by what starts processes (accelerate, torchrun, torch.multiprocessing) when one failed
_OF_LAUNCHERS = {
    *("CalledProcessError", "ChildFailedError"),
    *("ProcessRaisedException", "ProcessExitedException"),
}

#: what CUDA says of a GPU that is not there
_NO_SUCH_DEVICE = "invalid device ordinal"

#: what an all-to-all says of sizes that are not those of what is sent
_SPLIT_SIZES = "Split sizes doesn't match"

#: how Python begins to print what a process raised
_TRACEBACK = "Traceback (most recent call last)"

#: what torch.compile says where there is no Triton, and Triton where there is no C compiler
_NO_TRITON = "Cannot find a working triton installation"
_NO_COMPILER = "Failed to find C compiler"

#: what libraries say that compile kernels at first use (DeepSpeed, apex, PyTorch's extensions),
#: where there is no nvcc
_NO_NVCC = (
    "CUDA_HOME does not exist",
    "CUDA_HOME environment variable is not set",
    "unable to compile CUDA op",
    "/bin/nvcc",
)

#: which kernels those are
_EXTENSION = re.compile(r"building extension '(\w+)'")

#: what jobs look for that a launcher would have set
_RANK_VARIABLES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR"}


def explain_no_recording(recorded: Recorded, question: CommandQuestion) -> MemgateError:
    """Say why no process of a command recorded anything."""
    heard = recorded.heard
    if heard.error is not None:
        return heard.error
    if heard.problems:
        return NotWatchedError(heard.problems[0])
    hidden = find_hidden_use(heard.lookups, heard.ancestors)
    if hidden and not recorded.status:
        return UnsupportedJobError(
            f"{hidden[0].program} looked for NVIDIA's driver ({hidden[0].sought}) without torch:"
            " memgate answers for jobs that use the GPU through PyTorch, and no other"
        )
    if heard.failures:
        cause = _find_cause([*heard.failures.values()])
        return explain_failure(cause, (), question, output_of(recorded, cause))
    if recorded.status is None:  # it was ended by us, and its process did not answer
        return _took_too_long(question, "could not be recorded")
    return explain_status(recorded, question)


def _took_too_long(question: CommandQuestion, what: str) -> TimeLimitError:
    return TimeLimitError(
        f"the job was not done after {question.limits.seconds:g} s and {what}, which is memgate's"
        " limit and not the job's fault; allow more with --timeout SECONDS"
    )


def explain_ended(programs: Sequence[str]) -> str:
    """Say why programs were ended that a job started, and what helps."""
    names = ", ".join(dict.fromkeys(programs))
    return (
        f"the job started a program that was ended when it was about to change a file: {names}. It"
        " is linked statically, so its changes cannot be kept apart here; memgate run does so where"
        " the kernel allows user namespaces, or as root, and --allow-writes lets it change files"
    )


def blame_guard(error: JobFailedError, recorded: Recorded) -> MemgateError:
    """Say that a job may have failed because we ended one of its programs."""
    if not recorded.heard.ended:
        return error
    return UnsupportedJobError(
        f"{explain_ended(recorded.heard.ended)}. After that, {error.message}"
    )


def explain_status(
    recorded: Recorded, question: CommandQuestion, *, num_steps: int | None = None
) -> MemgateError:
    """Say why a command that raised nothing has trained too little.

    ``num_steps`` are the steps that it made; None if it never used CUDA.
    """
    if recorded.status is None and num_steps == 0:  # nothing but the time ends it before it trains
        return _took_too_long(question, "had trained nothing")
    status = recorded.status or 0
    if status == 0:
        return nothing_trained(" ".join(question.command), used_cuda=num_steps is not None)
    if status < 0:
        return explain_end(status, _last_line(recorded.last_output), is_script=True)
    return JobFailedError(
        f"the command ended with exit status {status}"
        f"{f' after {num_steps} training steps' if num_steps else ' before it trained anything'}"
        f"{quote(recorded.last_output)}"
    )


def explain_failure(
    failure: Raised, unmodelled: Sequence[str], question: CommandQuestion, output: str
) -> MemgateError:
    """Say whose fault an exception is that ended a job."""
    if unmodelled:
        return not_modelled(unmodelled)
    ours = _find_limit(failure, question)
    if ours is not None:
        return ours
    if failure.kind == "MemoryError" or NO_HOST_MEMORY in failure.message:
        return HostMemoryError(f"this machine has no memory for the job: {failure.last_line}")
    if NO_KERNELS in failure.message:
        return NoKernelsError(f"the job failed: {failure.last_line}")
    if failure.kind == "ModuleNotFoundError" and question.runtime:
        return UnsupportedJobError(
            f"the job needs the module {failure.module!r}, which runtime {question.runtime} lacks;"
            " run it in its own environment: memgate run -- COMMAND"
        )
    if _NO_SUCH_DEVICE in failure.message:
        return UnsupportedJobError(
            f"the job asks for more GPUs than memgate shows it{_where(failure)}: say how many a"
            " node has, with --nproc N"
        )
    missing = failure.message.strip("'\"")
    if failure.kind == "KeyError" and missing in _RANK_VARIABLES:
        return JobFailedError(
            f"the job failed{_where(failure)}: it reads the variable {missing}, which what starts"
            " its processes would set; start it with that (torchrun --nproc-per-node N), or give"
            " the variables yourself (RANK=0 WORLD_SIZE=N LOCAL_RANK=0 before memgate)"
        )
    return JobFailedError(f"the job failed{_where(failure)}: {failure.last_line}{quote(output)}")


def _find_limit(failure: Raised, question: CommandQuestion) -> MemgateError | None:
    """Return what the job asks for and memgate does not have, if that is why it failed."""
    if _NO_COMPILER in failure.message:
        return CompilerMissingError(
            "the job uses torch.compile or Triton, and this machine has no C compiler, which Triton"
            " needs to start kernels: install one (apt install gcc, conda install gcc), or name"
            " one with the variable CC"
        )
    if any(said in failure.last_line for said in _NO_NVCC):
        named = _EXTENSION.search(failure.last_line)
        what = named[1] if named else failure.last_line[:_MAX_CHARACTERS]
        return UnsupportedJobError(
            f"the job compiles kernels with nvcc at first use ({what}){_where(failure)}, which"
            " memgate cannot do, and has no stand-in for; use what PyTorch has instead:"
            ' "torch_adam": true in the parameters of DeepSpeed\'s optimizer, torch.optim.AdamW'
            " (fused=True allocates as FusedAdam does) for apex, or install a package that has its"
            " kernels built"
        )
    if _NO_TRITON in failure.message and question.runtime:
        return UnsupportedJobError(
            "the job uses torch.compile, which needs the module 'triton', which runtime"
            f" {question.runtime} lacks; run it in its own environment: memgate run -- COMMAND."
            " --ignore-compile answers for the job without it, and says so"
        )
    if _SPLIT_SIZES in failure.message:
        return UnsupportedJobError(
            f"the job sends other ranks parts whose sizes do not add up{_where(failure)}. Sizes"
            " that it finds in results of a GPU, as how many tokens an expert gets, are made up;"
            " counted with torch.bincount or torch.histc they add up, and where experts have a"
            " fixed capacity none are read"
        )
    return None


def output_of(recorded: Recorded, cause: Raised) -> str:
    """Return what was printed, without what a launcher printed about the failure of its process."""
    output = recorded.last_output
    is_last = [*recorded.heard.failures.values()][-1] is cause
    return output if is_last else output.rpartition(_TRACEBACK)[0] or output


def tell_failure(failure: Raised) -> str:
    """Say in a line what was raised, and where; the text of an exception may have many."""
    first, *others = [line.strip() for line in failure.last_line.splitlines() if line.strip()]
    # A process that quotes the failure of another one ends with what that one raised.
    said = f"{first} ... {others[-1]}" if _TRACEBACK in failure.last_line else first
    return f"{said[:_MAX_CHARACTERS]}{_where(failure)}"


def quote(output: str) -> str:
    """Quote the end of what a command printed."""
    lines = [line for line in output.splitlines() if line.strip()][-_NUM_LINES:]
    if not lines:
        return "; it printed nothing"
    return "\nthe last lines that it printed:\n" + "\n".join(f"  {line}" for line in lines)


def _find_cause(failures: Sequence[Raised]) -> Raised:
    """Return what the last process raised that did not fail because another one had."""
    own = [failure for failure in failures if failure.kind not in _OF_LAUNCHERS]
    return own[-1] if own else failures[-1]


def _last_line(output: str) -> str:
    lines = output.strip().splitlines()
    return lines[-1] if lines else "it printed nothing"


def _where(failure: Raised) -> str:
    """Name the frame that raised, and its source line."""
    if not failure.frames:
        return ""
    file, line, function, source = failure.frames[-1]
    is_news = source and not source.startswith("raise")  # what was raised is said anyway
    shown = f" ({source})" if is_news else ""
    return f" in {Path(file).name}, line {line}, in {function}{shown}"
