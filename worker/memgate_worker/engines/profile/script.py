"""Runs a user's own script on the CPU under the profiler and writes the trace. Needs torch.

The profiler is started when a model is first called, and the process is ended as soon as the
optimizer has made enough steps.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.profiler import ProfilerActivity, profile

from memgate.residents import MODEL_NOTE
from memgate_worker.engines.messages import Profiled, ProfileScriptRun
from memgate_worker.engines.profile.as_on_cuda import choose_as_on_cuda
from memgate_worker.engines.profile.autocast import cast_as_on_cuda
from memgate_worker.engines.profile.modules import ModuleMarks
from memgate_worker.engines.profile.on_the_cpu import OnTheCpu, redirect_to_the_cpu
from memgate_worker.engines.profile.run import model_bytes
from memgate_worker.engines.versions import library_versions
from memgate_worker.jobs.failures import nothing_trained
from memgate_worker.jobs.script import run_as_main


def profile_script(
    work: ProfileScriptRun, *, on_step: Callable[[], None], finish: Callable[[Profiled], None]
) -> Profiled:
    """Profile a script until its optimizer has made enough steps.

    Args:
        work: which, how it is started, and where the trace goes.
        on_step: called after each optimizer step.
        finish: called after the last one, and does not return.

    Returns:
        What was profiled, if the script ended before that.

    Raises what the script raises, and:
        UnsupportedJobError: if it made no step that can be seen.
    """
    choose_as_on_cuda()
    cast_as_on_cuda()
    redirect_to_the_cpu()
    recording = _Recording(work, on_step, finish)
    ModuleMarks()
    script = work.script
    with OnTheCpu():
        run_as_main(Path(script.path), script.arguments, Path(script.directory))
    if recording.num_steps == 0:
        raise nothing_trained(script.path)
    return recording.stop()


class _Recording:
    """The profiler, from the first call of a model to the last step."""

    def __init__(
        self,
        work: ProfileScriptRun,
        on_step: Callable[[], None],
        finish: Callable[[Profiled], None],
    ) -> None:
        self._work = work
        self._on_step = on_step
        self._finish = finish
        self._profiler: Any = None
        self._model: nn.Module | None = None
        self.num_steps = 0
        register_module_forward_pre_hook(self._on_call)
        register_optimizer_step_post_hook(self._after_step)

    def _on_call(self, module: nn.Module, _: Any) -> None:
        if self._profiler is not None:
            return
        self._model = module
        self._profiler = profile(
            activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True
        )
        self._profiler.start()

    def _after_step(self, *_: Any) -> None:
        self.num_steps += 1
        self._on_step()
        if self.num_steps >= self._work.script.num_steps:
            self._finish(self.stop())

    def stop(self) -> Profiled:
        """Write the trace."""
        assert self._profiler is not None
        assert self._model is not None
        note = {MODEL_NOTE: list(model_bytes(self._model))}
        self._profiler.add_metadata_json("memgate", json.dumps(note))
        self._profiler.stop()
        self._profiler.export_chrome_trace(self._work.trace_path)
        return Profiled(
            num_parameters=sum(parameter.numel() for parameter in self._model.parameters()),
            versions=library_versions(),
            num_steps=self.num_steps,
        )
