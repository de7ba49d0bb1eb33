"""Runs a user's own training script, unchanged, on the phantom. Needs torch.

Called by ``host`` in the script's own process, which is ended as soon as the optimizer has made
enough steps. The script sees a CUDA device and the memory of the GPU that was asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from memgate.errors import UnsupportedJobError
from memgate_worker.engines.messages import RecordedRun, ScriptRun
from memgate_worker.engines.phantom.control import Phantom
from memgate_worker.engines.phantom.run import Recording
from memgate_worker.jobs.blank import blank
from memgate_worker.jobs.failures import nothing_trained
from memgate_worker.jobs.script import run_as_main

#: fills of at least this many elements are weights, whose values never matter
_WEIGHT_ELEMENTS = 4096


def run_script(
    script: ScriptRun,
    phantom: Phantom,
    *,
    on_step: Callable[[], None],
    finish: Callable[[RecordedRun], None],
) -> RecordedRun:
    """Run a script until its optimizer has made enough steps.

    Args:
        script: which, and how it is started.
        phantom: the device.
        on_step: called after each optimizer step.
        finish: called after the last one, and does not return.

    Returns:
        The answer, if the script ended before that.

    Raises what the script raises, and:
        UnsupportedJobError: if it made no step that can be seen, or uses ``torch.compile``.
    """

    def after_step(num_steps: int) -> None:
        on_step()
        if num_steps >= script.num_steps:
            finish(recording.answer())

    recording = Recording(phantom, after_step)
    _leave_weights_unfilled()
    _refuse_compilation()
    _show_the_memory_of_the_gpu()
    _note_fractions(recording.tracker.note_fraction)
    run_as_main(Path(script.path), script.arguments, Path(script.directory))
    answer = recording.answer() if torch.cuda.is_initialized() else None
    if answer is None or answer.num_steps == 0:
        raise nothing_trained(script.path, used_cuda=answer is not None)
    return answer


def _leave_weights_unfilled() -> None:
    """Blank large tensors on the CPU instead of filling them: their pages are never touched."""
    for name in ("normal_", "uniform_"):
        setattr(torch.Tensor, name, _unless_large(getattr(torch.Tensor, name)))
    nn.init.trunc_normal_ = _unless_large(nn.init.trunc_normal_)


def _unless_large(fill: Any) -> Any:
    def fill_unless_large(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if tensor.device.type == "cpu" and tensor.numel() >= _WEIGHT_ELEMENTS:
            return blank(tensor)
        return fill(tensor, *args, **kwargs)

    return fill_unless_large


def _refuse_compilation() -> None:
    """A compiled model allocates differently; running it uncompiled would give a wrong answer."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise UnsupportedJobError(
            "torch.compile is not supported yet; without it the script would take other memory, so"
            " that would be the answer to another question"
        )

    def compile(model: Any = None, **_: Any) -> Any:
        if isinstance(model, nn.Module):
            refuse()
        # Libraries compile functions that are never called: refused when they are.
        return refuse if model is not None else lambda _: refuse

    torch.compile = compile


def _show_the_memory_of_the_gpu() -> None:
    """Let the device's properties say the same as ``torch.cuda.mem_get_info``.

    The device itself has ample memory; otherwise a job that does not fit could not run to its end.
    """
    get_properties = torch.cuda.get_device_properties

    def get_device_properties(*args: Any, **kwargs: Any) -> Any:
        return _Properties(get_properties(*args, **kwargs))

    torch.cuda.get_device_properties = get_device_properties


class _Properties:
    def __init__(self, properties: Any) -> None:
        self._properties = properties
        self.total_memory = torch.cuda.mem_get_info()[1]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._properties, name)


def _note_fractions(note: Callable[[float], None]) -> None:
    """Note limits that the script sets; they apply on any GPU that it is judged for."""

    def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
        del device
        if not torch.cuda.is_initialized():
            torch.cuda.init()
        note(fraction)

    torch.cuda.set_per_process_memory_fraction = set_per_process_memory_fraction
    torch.cuda.memory.set_per_process_memory_fraction = set_per_process_memory_fraction
