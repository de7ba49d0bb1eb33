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
from memgate_worker.engines.phantom.encoders import ENCODERS_LEFT_OUT
from memgate_worker.engines.phantom.heads import name_head
from memgate_worker.engines.phantom.kernels import FLASH_ATTN_OURS, KERNELS_TIMED, RECURRENT
from memgate_worker.engines.phantom.no_effect import find_without_effect
from memgate_worker.engines.phantom.recorded import describe_now, interpret
from memgate_worker.engines.versions import library_versions
from memgate_worker.hook.memgate_hook.compiling import were_kernels_timed
from memgate_worker.hook.memgate_hook.phantom import Phantom
from memgate_worker.hook.memgate_hook.recording import Recording
from memgate_worker.hook.memgate_hook.recurrent import run_recurrent_layers_without_cudnn
from memgate_worker.jobs.distributed.group import joined_group
from memgate_worker.jobs.distributed.kinds import find_unlike_ranks
from memgate_worker.jobs.failures import not_modelled
from memgate_worker.jobs.models import build_for
from memgate_worker.jobs.tasks.latents import leaves_encoders_out
from memgate_worker.jobs.trainers.choosing import start_job
from memgate_worker.standins.flash import FLASH_ATTN_DIR


def run_job(spec: JobSpec, phantom: Phantom) -> RecordedRun:
    """Run a job's iterations and return what the real allocator did."""
    recording = Recording(phantom)
    torch.backends.cudnn.benchmark = spec.cudnn_benchmark
    noted: set[str] = set()
    run_recurrent_layers_without_cudnn(lambda: noted.add(RECURRENT))
    with joined_group(spec.distributed):
        unlike = _train(spec, recording, noted)
    refused = phantom.counters().unmodelled
    if spec.compile and refused:  # what torch compiles may go on without a call that failed
        raise not_modelled(refused)
    run = interpret(describe_now(recording.describe()), recording.tracker.rows())
    notes = (*sorted(noted), *_notes())
    return msgspec.structs.replace(
        run, versions=library_versions(), notes=notes, unlike_ranks=unlike
    )


def _train(spec: JobSpec, recording: Recording, noted: set[str]) -> tuple[int, ...]:
    """Run a job to its end; return the ranks that were given something else than this one."""
    model = build_for(spec)
    if leaves_encoders_out(spec, model):
        noted.add(ENCODERS_LEFT_OUT)
    noted |= {*find_without_effect(spec, model), *name_head(spec, model)}
    job = start_job(spec, model, recording.stages.saving)
    job.run()
    return find_unlike_ranks(spec.distributed, job)


def _notes() -> Iterator[str]:
    if were_kernels_timed():
        yield KERNELS_TIMED
    flash_attn = sys.modules.get("flash_attn")
    if flash_attn is not None and str(flash_attn.__file__).startswith(f"{FLASH_ATTN_DIR}{os.sep}"):
        yield FLASH_ATTN_OURS
