"""Whose fault it is that a job's run has no answer."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from memgate.errors import (
    Fault,
    HostMemoryError,
    InputError,
    JobFailedError,
    MemgateError,
    NoKernelsError,
    NotModelledError,
    ProcessLostError,
    UnsupportedJobError,
)
from memgate_worker.jobs.failures import (
    explain_end,
    explain_exception,
    not_modelled,
    nothing_trained,
)

SCRIPT = Path("/home/me/train.py")
NO_HOST_MEMORY = RuntimeError("[enforce fail] . DefaultCPUAllocator: can't allocate memory")
NO_KERNELS = RuntimeError("CUDA error: no kernel image is available for execution on the device")
OLD_GPU = RuntimeError("gemm is only supported for compute capability 8.0 or higher")


class OutOfMemoryError(RuntimeError):
    """As torch names its own."""


def _explain(
    error: Exception, script: Path | None = None, refused: tuple[str, ...] = ()
) -> MemgateError:
    return explain_exception(error, script=script, refused=refused, allowed_memory="8.00 GiB")


@pytest.mark.parametrize(
    ("error", "of_our_loop", "of_a_script"),
    [
        (TypeError("forward() needs labels"), UnsupportedJobError, JobFailedError),
        (OutOfMemoryError("CUDA out of memory."), JobFailedError, JobFailedError),
        (InputError("optimizer.name is 'Adamm'"), InputError, InputError),
        (ModuleNotFoundError("no", name="einops"), UnsupportedJobError, UnsupportedJobError),
        (MemoryError(), HostMemoryError, HostMemoryError),
        (NO_HOST_MEMORY, HostMemoryError, HostMemoryError),
        (NO_KERNELS, NoKernelsError, NoKernelsError),
        (OLD_GPU, JobFailedError, JobFailedError),
    ],
    ids=[
        *("any", "gpu memory", "the caller's", "a module", "host memory", "torch's", "kernels"),
        "an older GPU",
    ],
)
def test_our_loop_is_not_a_script(
    error: Exception, of_our_loop: type[MemgateError], of_a_script: type[MemgateError]
) -> None:
    """What a script raises it would raise on a GPU; what our loop raises says nothing of a job."""
    assert type(_explain(error)) is of_our_loop
    assert type(_explain(error, SCRIPT)) is of_a_script


def test_a_library_that_a_model_looks_for_is_named() -> None:
    """In the words of the library that looked, which begin with an empty line."""
    missing = ImportError("\nDinatModel requires the natten library\nbut it was not found.\n")

    error = _explain(missing)

    assert error.fault is Fault.UNSUPPORTED
    assert "lacks: DinatModel requires the natten library but it was not found." in error.message


def test_no_source_of_torch_is_quoted() -> None:
    """Only what it asked for."""
    said = _explain(NO_HOST_MEMORY).message

    assert "(can't allocate memory)" in said
    assert "enforce" not in said


def test_a_message_that_begins_with_an_empty_line_is_quoted() -> None:
    """As torch's pipelines have it: what was said is below."""
    said = explain_exception(
        RuntimeError("\n   Failed to run stage backward:\n"),
        script=None,
        refused=(),
        allowed_memory="4 GiB",
    )

    assert "RuntimeError: Failed to run stage backward:" in said.message


def test_our_loop_says_whose_limit_it_is_and_the_way_out() -> None:
    """With the original error; never that it would fail like this on a GPU."""
    said = _explain(TypeError("LBFGS.step() missing 'closure'\nand more")).message

    assert "memgate does not know how to train this job by a spec" in said
    assert "TypeError: LBFGS.step() missing 'closure'" in said
    assert "and more" not in said
    assert "memgate estimate train.py" in said
    assert "trace" in said
    assert "on a GPU, too" not in said


@pytest.mark.parametrize("script", [None, SCRIPT], ids=["our loop", "a script"])
def test_what_the_phantom_refused_is_ours(script: Path | None) -> None:
    """Whatever came of it in the end."""
    explained = _explain(RuntimeError("cuFFT error"), script, ("cufftExecC2C", "cufftPlan1d"))

    assert type(explained) is NotModelledError
    assert "cufftExecC2C, cufftPlan1d" in explained.message


@pytest.mark.parametrize(
    ("calls", "want"),
    [
        (["cudnnCreateRNNDescriptor"], ", for recurrent layers by cuDNN (nn.LSTM, nn.GRU, nn.RNN)"),
        (["cufftCreate", "cusolverDnXgetrf"], "torch.stft) and linear algebra (torch.linalg)"),
        (["cuMemMap"], "it calls cuMemMap, of NVIDIA's own libraries"),
    ],
)
def test_a_refusal_names_what_the_calls_are_for(calls: list[str], want: str) -> None:
    """Nobody writes these calls into a job."""
    assert not_modelled(calls).message.endswith(want)


@pytest.mark.parametrize(
    ("code", "of_our_loop", "of_a_script"),
    [
        (2, UnsupportedJobError, JobFailedError),
        (0, UnsupportedJobError, UnsupportedJobError),
        (-signal.SIGKILL, ProcessLostError, ProcessLostError),
        (-signal.SIGTERM, ProcessLostError, ProcessLostError),
        (-signal.SIGSEGV, UnsupportedJobError, UnsupportedJobError),
    ],
    ids=["exit status", "no answer", "killed", "ended", "native code"],
)
def test_a_process_that_ended_is_told_apart(
    code: int, of_our_loop: type[MemgateError], of_a_script: type[MemgateError]
) -> None:
    """Killed from outside it may do better; code that stands in for a GPU's is not the job's."""
    ends = [explain_end(code, "last words", is_script=is_script) for is_script in (False, True)]

    assert [type(end) for end in ends] == [of_our_loop, of_a_script]
    assert all("last words" in end.message for end in ends)


def test_a_script_without_a_step_is_nobodys_fault() -> None:
    """It ran well: perhaps it trains by hand, which we cannot see."""
    error = nothing_trained("train.py", used_cuda=False)

    assert error.fault is Fault.UNSUPPORTED
    assert "never used CUDA" in error.message
    assert "model.to('cuda')" in error.message
    assert "without a step" in nothing_trained("train.py").message
