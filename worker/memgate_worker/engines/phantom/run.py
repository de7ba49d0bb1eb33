"""Runs one job on the phantom and reports what the real allocator did. Needs torch.

Called by ``host`` in the job's own process. Nothing here knows about GPU names, capacities or
verdicts. People's own commands are run by ``recorder``, with the same ``Recording``.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator

import msgspec
import torch

from memgate.jobspec import JobSpec
from memgate_worker.engines.messages import RecordedRun
from memgate_worker.engines.phantom.kernels import FLASH_ATTN_OURS, KERNELS_TIMED
from memgate_worker.engines.phantom.recorded import describe_now, interpret
from memgate_worker.engines.versions import library_versions
from memgate_worker.hook.memgate_hook.compiling import were_kernels_timed
from memgate_worker.hook.memgate_hook.phantom import Phantom
from memgate_worker.hook.memgate_hook.recording import Recording
from memgate_worker.jobs.failures import not_modelled
from memgate_worker.jobs.models import build_for
from memgate_worker.jobs.trainers.choosing import start_job
from memgate_worker.standins.flash import FLASH_ATTN_DIR


def run_job(spec: JobSpec, phantom: Phantom) -> RecordedRun:
    """Run a job's iterations and return what the real allocator did."""
    recording = Recording(phantom)
    torch.backends.cudnn.benchmark = spec.cudnn_benchmark
    start_job(spec, build_for(spec), recording.stages.saving).run()
    refused = phantom.counters().unmodelled
    if spec.compile and refused:  # what torch compiles may go on without a call that failed
        raise not_modelled(refused)
    run = interpret(describe_now(recording.describe()), recording.tracker.rows())
    return msgspec.structs.replace(run, versions=library_versions(), notes=tuple(_notes()))


def _notes() -> Iterator[str]:
    if were_kernels_timed():
        yield KERNELS_TIMED
    flash_attn = sys.modules.get("flash_attn")
    if flash_attn is not None and str(flash_attn.__file__).startswith(f"{FLASH_ATTN_DIR}{os.sep}"):
        yield FLASH_ATTN_OURS
