"""Runs a job on the CPU under ``torch.profiler`` and writes the trace. Needs torch.

Called by ``host`` in the job's own process.
"""

from __future__ import annotations

import ctypes
import json
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from memgate.jobspec import JobSpec
from memgate.residents import MODEL_NOTE
from memgate.units import MIB
from memgate_worker.engines.messages import Profiled
from memgate_worker.engines.profile.arithmetic import leave_out_arithmetic
from memgate_worker.engines.profile.as_on_cuda import choose_as_on_cuda
from memgate_worker.engines.profile.autocast import cast_as_on_cuda
from memgate_worker.engines.profile.modules import ModuleMarks
from memgate_worker.engines.profile.pretended import in_loading_order
from memgate_worker.engines.versions import library_versions
from memgate_worker.jobs.attention import choose_attention
from memgate_worker.jobs.loop import TrainingLoop
from memgate_worker.jobs.models import build_model

#: from the C library's malloc.h
_M_MMAP_THRESHOLD = -3


def profile_job(spec: JobSpec, trace_path: Path) -> Profiled:
    """Run a job's iterations under the profiler, without computing anything large."""
    choose_as_on_cuda()
    cast_as_on_cuda()
    leave_out_arithmetic()
    loop = TrainingLoop(spec, build_model(choose_attention(spec)), "cpu")
    ModuleMarks()
    with profile(
        activities=[ProfilerActivity.CPU], profile_memory=True, record_shapes=True
    ) as profiler:
        profiler.add_metadata_json(
            "memgate", json.dumps({MODEL_NOTE: list(model_bytes(loop.model))})
        )
        loop.run()
    profiler.export_chrome_trace(str(trace_path))
    return Profiled(
        num_parameters=sum(parameter.numel() for parameter in loop.model.parameters()),
        versions=library_versions(),
        architectures=tuple(torch.cuda.get_arch_list()),
    )


def be_frugal() -> None:
    """Let the C library give large blocks back once they are free; call it before torch has any.

    Pages that are never written cost nothing: weights, gradients, most of an optimizer's state. But
    the C library keeps freed memory that was written, among the profiler's records, and places them
    there: gigabytes more with each iteration. Giving it back costs kernel time, less with huge
    pages.
    """
    os.environ["THP_MEM_ALLOC_ENABLE"] = "1"
    ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, MIB)


def model_bytes(model: nn.Module) -> Iterator[int]:
    """Return the sizes of parameters and buffers, in the order in which ``to`` visits them."""
    seen: set[int] = set()
    for tensor in in_loading_order(model):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in seen:
            seen.add(storage.data_ptr())
            yield tensor.numel() * tensor.element_size()
