"""The part of memgate that runs inside a job's own processes: waits for torch, and records.

It is imported by ``sitecustomize`` in every Python process of a job under ``memgate run``, whatever
environment that process has. So it needs nothing but the standard library, Python 3.9 or later, and
it changes nothing until torch is imported:

    failures      tells what ended a process
    connection    how memgate is told
    descent       where a process comes from
    helpers       which processes end with this one
    gate          one rank of a job runs, the processes of all others wait; ``layout`` says which
                  variables each has
    launchers     what is changed in programs that start ranks, as ``noticing`` sees them imported
    pipelines     which ranks have the stages of a pipeline
    waiting       sees ``import torch`` coming, and has our stand-ins loaded first
    phantom       loads them, and describes the device
    ranks         one rank on behalf of all: ``rank_store`` and ``rank_gloo`` stand for the others,
                  ``rank_objects``, ``rank_numbers``, ``rank_pipelines`` and ``rank_optimizers``
                  have what they would have sent (``rank_post``: what they did send),
                  ``rank_sharding`` saves DTensor time, ``later_imports`` sees modules coming,
                  ``communication`` counts
    session       this process's part of the run: what it tells, when it ends
    recording     what is recorded, in the form in which it is written down
    tracker       the real allocator's events
    observer      which of them belong to which phase, layer and tensor
    arguments     tensors among the arguments of a call
    stages        loading, training, evaluation, saving; the shapes of batches
    loaders       data loaders, and how large the batches are of those that were not used yet
    sample_sizes  how large their samples are
    evaluations   whether what was seen of them tells what another one takes
    turns         whether the job trains several times, one training after the other
    values        plausible contents for tensors that nobody computes
    watch         how long to go on
    longest       the longest batch that the caller asks for: ``lengths`` says what it is like,
                  ``padding`` makes it, ``moves`` sees batches that no data loader gives out;
                  or ``longest_samples``, which ``samples`` finds in the data set
    compiling     stays out of the sight of torch.compile, and knows when it is at work
    adjustments   what we change in torch, and why
    recurrent     recurrent layers without cuDNN
    compiled_kernels  kernels that libraries compile with nvcc at first use
    blank         weights that are not filled

Our own engines import it too, as ``memgate_worker.hook.memgate_hook``: there is one observer and
one recording. Modules import each other relatively, so that both names work.
"""

from __future__ import annotations

import os


def start() -> None:
    """Wait for torch, if this process belongs to a run."""
    if "MEMGATE_RUN_DIR" in os.environ:
        from .failures import tell_failures
        from .gate import take_place
        from .launchers import notice_launchers
        from .pipelines import notice_pipelines
        from .waiting import wait_for_torch

        take_place()
        tell_failures()
        notice_launchers()
        notice_pipelines()
        wait_for_torch()
