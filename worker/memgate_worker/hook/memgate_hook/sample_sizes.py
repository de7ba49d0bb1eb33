"""A data loader -> how much each sample is in its batches, without the job noticing.

A few samples are made and put together by the loader's own functions, in a fork of this process, as
a worker of the loader would do it: files, caches and random numbers of the job stay as they are.
One that takes long is given up.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import struct
import threading
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset, default_collate

from .samples import length_of

#: how long the samples of a loader may take to make
_SECONDS = 2.0

_RESULT = struct.Struct("d?")


class SampleSize(NamedTuple):
    """How much a sample is, in numbers and characters."""

    elements: float
    #: some samples have more than others
    varies: bool


def measure_sample(loader: DataLoader[Any]) -> SampleSize | None:
    """Return how much a sample of a loader is in its batches; None if that is not known."""
    tensors = _tensors_behind(loader)
    if tensors is not None:
        return SampleSize(float(sum(one[:1].numel() for one in tensors)), varies=False)
    is_alone = threading.current_thread() is threading.main_thread()
    if isinstance(loader.dataset, IterableDataset) or not is_alone:
        return None
    return _ask_a_fork(loader)


def _tensors_behind(loader: DataLoader[Any]) -> tuple[torch.Tensor, ...] | None:
    """Return the tensors that a loader takes its samples from, if it does nothing else."""
    dataset: Any = loader.dataset
    while type(dataset) is Subset:
        dataset = dataset.dataset
    is_plain = loader.collate_fn is default_collate and loader.batch_sampler is not None
    return dataset.tensors if type(dataset) is TensorDataset and is_plain else None


def _ask_a_fork(loader: DataLoader[Any]) -> SampleSize | None:
    reading, writing = os.pipe()
    try:
        pid = os.fork()
    except OSError:
        os.close(reading)
        os.close(writing)
        return None
    if pid == 0:
        with contextlib.suppress(BaseException):
            os.write(writing, _RESULT.pack(*_measure(loader)))
        os.kill(os.getpid(), signal.SIGKILL)  # nothing of the job's runs at the end of it
    os.close(writing)
    try:
        is_there = select.select([reading], [], [], _SECONDS)[0]
        said = os.read(reading, _RESULT.size) if is_there else b""
    finally:
        os.close(reading)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    return SampleSize(*_RESULT.unpack(said)) if len(said) == _RESULT.size else None


def _measure(loader: DataLoader[Any]) -> SampleSize:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(int(_SECONDS) + 1)
    torch.set_num_threads(1)  # threads of the parent are not here
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, 1)
    os.dup2(devnull, 2)
    dataset: Any = loader.dataset
    if loader.batch_sampler is None:  # the data set has whole batches
        return SampleSize(float(length_of(loader.collate_fn(dataset[0]))), varies=False)
    count = len(dataset)
    samples = [dataset[index] for index in sorted({0, count // 2, count - 1})]
    lengths = {length_of(sample) for sample in samples}
    batch = loader.collate_fn(samples)
    return SampleSize(length_of(batch) / len(samples), varies=len(lengths) > 1)
