"""CompileSpec, model on its device -> the model as ``torch.compile`` gives it.

Dynamo, inductor and Triton run for real, as they do for commands (``docs/run.md``).
"""

from __future__ import annotations

import os
import shutil

import torch
from torch import nn

from memgate.errors import CompilerMissingError, InputError, NotModelledError
from memgate.jobspec import CompileSpec
from memgate.mistakes import unknown_name
from memgate_worker.jobs.libraries import need_library

#: modes and backends that record what they launch, and launch it again as a whole
_WITH_GRAPHS = {"mode": {"reduce-overhead", "max-autotune"}, "backend": {"cudagraphs"}}

_COMPILERS = ("cc", "gcc", "clang")

#: the backend that needs Triton, and is tried with it
_INDUCTOR = "inductor"


def compile_model(model: nn.Module, asked: bool | CompileSpec) -> nn.Module:
    """Compile a model if a job asks for it; most of the work is done when it is first called.

    Raises:
        InputError: if torch has no such backend, or no such mode.
        NotModelledError: if it would use CUDA graphs.
        LibraryMissingError: if the runtime lacks Triton.
        CompilerMissingError: if this machine has no C compiler, which Triton needs.
    """
    spec = check_compile(asked)
    if spec is None:
        return model
    given = spec.model_dump(exclude_defaults=True)
    compiled: nn.Module = torch.compile(model, **given)
    return compiled


def check_compile(asked: bool | CompileSpec) -> CompileSpec | None:
    """Return what is asked of ``torch.compile``; None if it is not asked for.

    Raises:
        MemgateError: as ``compile_model`` does.
    """
    if asked is False:
        return None
    spec = CompileSpec() if asked is True else asked
    _refuse_graphs(spec)
    _check_backend(spec.backend)
    if spec.backend == _INDUCTOR:
        need_triton("compile")
        _check_mode(spec)
    return spec


def need_triton(field: str) -> None:
    """Check that kernels can be compiled here, as a field of a job spec needs it.

    Raises:
        LibraryMissingError: if the runtime lacks Triton.
        CompilerMissingError: if this machine has no C compiler.
    """
    need_library("triton", field)
    if "CC" not in os.environ and not any(map(shutil.which, _COMPILERS)):
        raise CompilerMissingError(
            f"{field} needs a C compiler, with which Triton makes what starts its kernels, and this"
            " machine has none: install one (apt install gcc, conda install gcc)"
        )


def _refuse_graphs(spec: CompileSpec) -> None:
    for field, names in _WITH_GRAPHS.items():
        if getattr(spec, field) in names:
            raise NotModelledError(
                f"compile.{field} is {getattr(spec, field)!r}: it uses CUDA graphs, whose memory of"
                " their own the phantom engine does not know; the modes default and"
                " max-autotune-no-cudagraphs are known, and take other memory"
            )


def _check_backend(name: str) -> None:
    known = torch._dynamo.list_backends(exclude_tags=())
    if name not in known:
        rule = "torch.compile has no such backend"
        raise InputError.from_mistakes(unknown_name("compile.backend", name, known, rule=rule))


def _check_mode(spec: CompileSpec) -> None:
    known = torch._inductor.list_mode_options()
    if spec.mode is not None and spec.mode not in {"default", *known}:
        rule = "torch.compile has no such mode"
        raise InputError.from_mistakes(
            unknown_name("compile.mode", spec.mode, ["default", *known], rule=rule)
        )
