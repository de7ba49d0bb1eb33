"""Batches -> a data set of samples, as trainers want one, and how samples become a batch again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils.data import Dataset

from memgate_worker.jobs.tasks.task import Batch


class Samples(Dataset[Batch]):
    """The samples of batches, over and over, until there are as many as needed."""

    def __init__(self, batches: Sequence[Batch], batch_size: int, num_batches: int) -> None:
        self._samples = [
            _pick(batch, batch_size, index) for batch in batches for index in range(batch_size)
        ]
        self._num_samples = batch_size * num_batches

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> Batch:
        return self._samples[index % len(self._samples)]


def is_plain(batch: Batch, batch_size: int) -> bool:
    """Say whether libraries' own collators can put the samples of a batch together."""
    return all(isinstance(one, torch.Tensor) and len(one) == batch_size for one in batch.values())


def put_together(samples: Sequence[Batch]) -> Batch:
    """Put samples together that no library's collator knows: lists of objects, rows of patches."""
    return {name: _join([one[name] for one in samples]) for name in samples[0]}


def _pick(batch: Batch, batch_size: int, index: int) -> Batch:
    return {name: _part(value, batch_size, index) for name, value in batch.items()}


def _part(value: Any, batch_size: int, index: int) -> Any:
    """Return the part of one sample: a row of a tensor, several rows of it, or an element."""
    if isinstance(value, torch.Tensor) and value.dim() and len(value) == batch_size:
        return value[index]
    if isinstance(value, torch.Tensor) and value.dim() and len(value) % batch_size == 0:
        rows = len(value) // batch_size
        return _Rows(value[index * rows : (index + 1) * rows])
    if isinstance(value, list) and len(value) == batch_size:
        return [value[index]]
    return value


class _Rows:
    """Rows that belong to one sample."""

    def __init__(self, rows: torch.Tensor) -> None:
        self.rows = rows


def _join(parts: list[Any]) -> Any:
    first = parts[0]
    if isinstance(first, _Rows):
        return torch.cat([one.rows for one in parts])
    if isinstance(first, torch.Tensor):
        return torch.stack(parts)
    if isinstance(first, list):
        return [element for part in parts for element in part]
    return first
