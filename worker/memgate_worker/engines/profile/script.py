"""Runs a user's own script on the CPU under the profiler and writes the trace. Needs torch.

The profiler is started when a model is first called. As soon as an optimizer has made enough steps,
the script may evaluate what it has trained, and is ended when it trains again.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.profiler import ProfilerActivity, profile, record_function

from memgate.phases import STEP_PREFIX
from memgate.residents import MODEL_NOTE
from memgate_worker.engines.messages import Profiled, ProfileScriptRun
from memgate_worker.engines.profile.as_on_cuda import choose_as_on_cuda
from memgate_worker.engines.profile.autocast import cast_as_on_cuda
from memgate_worker.engines.profile.loaders import LoaderLimit
from memgate_worker.engines.profile.modules import ModuleMarks
from memgate_worker.engines.profile.on_the_cpu import OnTheCpu, redirect_to_the_cpu
from memgate_worker.engines.profile.pretended import (
    PretendedDevice,
    Resident,
    all_models,
    find_tensors,
    in_loading_order,
    storage_keys,
)
from memgate_worker.engines.versions import library_versions
from memgate_worker.jobs.failures import nothing_trained
from memgate_worker.jobs.script import run_as_main

#: an evaluation may take this long, or as long as everything before it
_MIN_EVALUATION_SECONDS = 10.0


def profile_script(
    work: ProfileScriptRun, *, on_step: Callable[[], None], finish: Callable[[Profiled], None]
) -> Profiled:
    """Profile a script until its optimizer has made enough steps, and the evaluation after them.

    Args:
        work: which, how it is started, and where the trace goes.
        on_step: called after each step.
        finish: called after the last one, and does not return.

    Returns:
        What was profiled, if the script ended before that.

    Raises what the script raises, and:
        UnsupportedJobError: if it made no step that can be seen.
    """
    choose_as_on_cuda()
    cast_as_on_cuda()
    device = PretendedDevice()
    redirect_to_the_cpu(device)
    mode = OnTheCpu(device)
    recording = _Recording(work, device, mode, on_step, finish)
    ModuleMarks()
    script = work.script
    try:
        with mode:
            run_as_main(Path(script.path), script.arguments, Path(script.directory))
    except Exception:
        # with fewer batches than it has, a script may fail that does not otherwise
        if not recording.is_enough:
            raise
    if recording.num_steps == 0:
        raise nothing_trained(script.path)
    return recording.stop()


class _Recording:
    """The profiler, from the first call of a model to the evaluation after the last step."""

    def __init__(
        self,
        work: ProfileScriptRun,
        device: PretendedDevice,
        mode: OnTheCpu,
        on_step: Callable[[], None],
        finish: Callable[[Profiled], None],
    ) -> None:
        self._work = work
        self._device = device
        self._on_step = on_step
        self._finish = finish
        self._began = time.monotonic()
        self._profiler: Any = None
        #: what was on the device when the profiler was started
        self._older: Sequence[Resident] = ()
        #: what of it was still there after the last step: a script that ends gives up everything
        self._stays: Sequence[Resident] = ()
        #: the script had put nothing on a GPU until then
        self._is_guess = False
        #: the optimizer that is at work, and the mark of its step if PyTorch's own came too early
        self._stepping: Optimizer | None = None
        self._mark: Any = None
        #: of each optimizer
        self._steps: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        self.num_steps = 0
        self._has_evaluated = False
        self._loaders = LoaderLimit(
            work.script.num_steps, lambda is_loading: setattr(mode, "is_loading", is_loading)
        )
        register_module_forward_pre_hook(self._on_call)
        register_optimizer_step_pre_hook(self._before_step)
        register_optimizer_step_post_hook(self._after_step)

    @property
    def is_enough(self) -> bool:
        """There were enough steps, or as many as the batches that were given."""
        has_all = self.num_steps >= self._work.script.num_steps
        return has_all or (self._loaders.has_ended_any and self.num_steps > 0)

    def _on_call(self, module: nn.Module, args: Any) -> None:
        if self._profiler is not None and self._is_guess and self._device and not self.num_steps:
            self._discard()  # that was a call on the host
        if self._profiler is None:
            if self._is_model(module):
                self._start(args)
        elif module.training and torch.is_grad_enabled():
            self._finish_if_done()
        elif self.num_steps >= self._work.script.num_steps:
            self._has_evaluated = True

    def _finish_if_done(self) -> None:
        """End the script, which is about to train again."""
        has_all = self.num_steps >= self._work.script.num_steps
        if has_all and (self._has_evaluated or not self._waits_for_evaluation()):
            self._finish(self.stop())

    def _is_model(self, module: nn.Module) -> bool:
        """Tell models from transforms and losses, and from models on the host."""
        if self._device:
            return self._device.holds_any(in_loading_order(module))
        return next(module.parameters(), None) is not None

    def _waits_for_evaluation(self) -> bool:
        """Say whether an iteration is still to be completed before the script may evaluate."""
        is_between_optimizers = self._work.script.num_steps - 1 in self._steps.values()
        is_fed = self._loaders.is_used and not self._loaders.has_ended_any
        return is_between_optimizers or is_fed

    def _start(self, args: Any) -> None:
        self._is_guess = not self._device
        of_batch = storage_keys(find_tensors(args))
        residents = (self._device or all_models()).residents()
        self._older = [one for one in residents if one.storage.cdata not in of_batch]
        self._profiler = profile(
            activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True
        )
        self._profiler.start()
        self._device.is_recorded = True
        if self._stepping is not None:  # it calls the model itself, as Lightning has it
            self._mark = record_function(f"{STEP_PREFIX}{type(self._stepping).__name__}.step")
            self._mark.__enter__()

    def _discard(self) -> None:
        self._profiler.stop()
        self._device.is_recorded = False
        self._profiler = None

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        if self._stepping is None:  # it may wrap another
            self._finish_if_done()
            self._stepping = optimizer

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        if optimizer is self._stepping:
            self._stepping = None
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None
        if self._profiler is None:  # it trains tensors without a module
            self._start(())
            return
        self._steps[optimizer] = self._steps.get(optimizer, 0) + 1
        self._stays = self._what_stays()
        num_steps = max(self._steps.values())
        if num_steps == self.num_steps:  # another optimizer of the same iteration
            return
        self.num_steps = num_steps
        self._loaders.after_step()
        self._on_step()
        if num_steps == self._work.script.num_steps:
            self._limit_time()
        elif num_steps > self._work.script.num_steps:
            self._finish(self.stop())

    def _limit_time(self) -> None:
        def stop(*_: Any) -> None:
            self._finish(self.stop())

        so_far = time.monotonic() - self._began
        signal.signal(signal.SIGALRM, stop)
        signal.setitimer(signal.ITIMER_REAL, max(_MIN_EVALUATION_SECONDS, so_far))

    def stop(self) -> Profiled:
        """Write the trace."""
        signal.setitimer(signal.ITIMER_REAL, 0)
        assert self._profiler is not None
        note = {MODEL_NOTE: [one.size_bytes for one in self._stays]}
        self._profiler.add_metadata_json("memgate", json.dumps(note))
        self._profiler.stop()
        self._profiler.export_chrome_trace(self._work.trace_path)
        return Profiled(
            num_parameters=sum(one.num_elements for one in self._stays),
            versions=library_versions(),
            num_steps=self.num_steps,
        )

    def _what_stays(self) -> list[Resident]:
        """Return what was there before the trace and still is: models, not the first batch.

        An optimizer's state is worked out from the trace.
        """
        states = (state for optimizer in self._steps for state in optimizer.state.values())
        of_optimizers = storage_keys(find_tensors(states))
        return [
            one for one in self._older if not one.is_gone and one.storage.cdata not in of_optimizers
        ]
