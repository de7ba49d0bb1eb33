"""Commands that use ``torch.compile``: where it keeps things, and what it says if it cannot run."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from memgate.errors import CompilerMissingError, JobFailedError, MemgateError, UnsupportedJobError
from memgate.gpus import find_gpu
from memgate_worker.engines.phantom.recorded import Raised
from memgate_worker.jobs.failures import not_modelled
from memgate_worker.recorder.environment import command_environment
from memgate_worker.recorder.failures import explain_failure
from memgate_worker.recorder.question import CommandQuestion

NO_TRITON = "Cannot find a working triton installation. Either the package is not installed"


def question(**fields: Any) -> CommandQuestion:
    """Ask about a script."""
    usual: dict[str, Any] = {
        "command": ("python", "train.py"),
        "directory": Path("/work"),
        "environment": {"TRITON_CACHE_DIR": "/home/me/.triton"},
        "gpu": find_gpu("t4"),
    }
    return CommandQuestion(**usual | fields)


@pytest.mark.parametrize(
    ("message", "runtime", "want", "want_message"),
    [
        (NO_TRITON, "torch-2.14", UnsupportedJobError, "'triton', which runtime torch-2.14 lacks"),
        (NO_TRITON, "", JobFailedError, "Cannot find a working triton installation"),
        ("Failed to find C compiler. Please", "", CompilerMissingError, "no C compiler"),
    ],
    ids=["our runtime", "an environment of its own", "no compiler"],
)
def test_what_torch_compile_lacks_is_named(
    message: str, runtime: str, want: type[MemgateError], want_message: str
) -> None:
    """Without Triton, a job fails on a GPU as well, unless it is our runtime that lacks it."""
    raised = Raised(kind="RuntimeError", message=message, last_line=f"RuntimeError: {message}")

    error = explain_failure(raised, (), question(runtime=runtime), "")

    assert type(error) is want
    assert want_message in error.message


@pytest.mark.parametrize(
    ("kind", "message", "want", "want_message"),
    [
        (
            "RuntimeError",
            "Error building extension 'fused_adam': [1/3] /usr/local/cuda/bin/nvcc -MD",
            UnsupportedJobError,
            r"nvcc at first use \(fused_adam\).*torch_adam",
        ),
        (
            "MissingCUDAException",
            "CUDA_HOME does not exist, unable to compile CUDA op(s)",
            UnsupportedJobError,
            "CUDA_HOME does not exist.*has no stand-in for",
        ),
        ("KeyError", "'LOCAL_RANK'", JobFailedError, "reads the variable LOCAL_RANK.*torchrun"),
        ("KeyError", "'name'", JobFailedError, "the job failed: KeyError: 'name'"),
        (
            "AcceleratorError",
            "CUDA error: invalid device ordinal",
            UnsupportedJobError,
            "more GPUs than memgate shows it: .* --nproc N",
        ),
    ],
    ids=["nvcc fails", "no nvcc", "no launcher", "another key", "another GPU"],
)
def test_what_a_distributed_job_lacks_is_named(
    kind: str, message: str, want: type[MemgateError], want_message: str
) -> None:
    """Each with what to do about it."""
    raised = Raised(kind=kind, message=message, last_line=f"{kind}: {message}")

    error = explain_failure(raised, (), question(), "")

    assert type(error) is want
    assert re.search(want_message, error.message)


def test_cuda_graphs_are_named_after_what_asks_for_them() -> None:
    """People write modes, and not calls of NVIDIA's libraries."""
    graphs, other = not_modelled(["cudaStreamBeginCapture"]), not_modelled(["cufftCreate"])

    assert "reduce-overhead" in graphs.message
    assert "cufftCreate" in other.message


def test_compiled_kernels_never_reach_the_caches_of_real_runs(tmp_path: Path) -> None:
    """Where files are not protected they go elsewhere; otherwise what is there can be read."""
    apart = command_environment(question(), tmp_path, is_protected=True)
    shared = command_environment(question(), tmp_path, is_protected=False)

    assert apart["TRITON_CACHE_DIR"] == "/home/me/.triton"
    assert "TORCHINDUCTOR_CACHE_DIR" not in apart
    caches = [shared[name] for name in ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")]
    assert all(Path(cache).is_relative_to(tmp_path) for cache in caches)
