"""What has to do with ``torch.compile``: stays out of its sight, and knows when it is at work.

Dynamo and inductor run for real, and launches of what they generate do nothing, as all launches. So
the compiled graph's own allocations are those that are recorded.

Dynamo reads the code of whatever a compiled function calls, and guards what that code looks at. A
hook of ours in there would end up in the compiled graph, break it in two, or make it compile again:
another job than the person's. So a function that we watch is watched from a wrapper that dynamo
passes through: it neither compiles nor traces anything of it.
"""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Callable

import torch
from torch._guards import TracingContext

_frames = torch._C._dynamo.eval_frame


def is_tracing() -> bool:
    """Tell whether torch is finding out what a compiled graph has to do.

    Then modules and methods are called with tensors that have no memory.
    """
    return TracingContext.try_get() is not None


def watch_calls(
    function: Callable[..., Any], begins: Callable[..., None], ends: Callable[..., None]
) -> Any:
    """Wrap a function; what is called before and after it is given its arguments.

    Neither is called while torch traces.
    """

    @functools.wraps(function)
    def watched(*args: Any, **kwargs: Any) -> Any:
        # Dynamo knows the first condition to be true, and looks at nothing else here.
        if torch.compiler.is_dynamo_compiling() or is_tracing():
            return function(*args, **kwargs)
        compiling = _frames.set_eval_frame(None)
        try:
            begins(*args, **kwargs)
        finally:
            _frames.set_eval_frame(compiling)
        try:
            return function(*args, **kwargs)
        finally:
            compiling = _frames.set_eval_frame(None)
            try:
                ends(*args, **kwargs)
            finally:
                _frames.set_eval_frame(compiling)

    _pass_through(watched)
    return watched


def _pass_through(function: Any) -> None:
    """Have dynamo run a function as it is, and compile what it calls."""
    if hasattr(_frames, "skip_code"):  # until 2.6
        _frames.skip_code(function.__code__)
        return
    skip, default = _frames._FrameAction.SKIP, _frames._FrameAction.DEFAULT
    strategy = _frames._FrameExecStrategy(skip, default)
    _frames.set_code_exec_strategy(function.__code__, strategy)


class CompileClock:
    """Knows how long torch has been compiling; that is no time in which a job is watched."""

    def __init__(self) -> None:
        """Count from now on; nothing must have been compiled yet."""
        self._seconds = 0.0
        trace = torch._guards.tracing

        @contextmanager
        def timed_tracing(context: Any) -> Iterator[None]:
            is_nested = is_tracing()
            start = time.monotonic()
            try:
                with trace(context):
                    yield
            finally:
                if not is_nested:
                    self._seconds += time.monotonic() - start

        # Whoever compiles, forward or backward, does it in this context.
        torch._guards.tracing = timed_tracing

    def now(self) -> float:
        """Return a time that stands still while torch compiles."""
        return time.monotonic() - self._seconds


def is_compile_worker() -> bool:
    """Tell whether this process compiles kernels for another one, and nothing else.

    It asks for the properties of the GPU, which counts as using CUDA, and allocates nothing on it.
    """
    program = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    return Path(program).parts[-3:-1] == ("_inductor", "compile_worker")


def were_kernels_timed() -> bool:
    """Tell whether inductor has chosen kernels by their times (max-autotune), which say nothing."""
    utils = sys.modules.get("torch._dynamo.utils")
    return utils is not None and utils.counters["inductor"]["select_algorithm_autotune"] > 0
