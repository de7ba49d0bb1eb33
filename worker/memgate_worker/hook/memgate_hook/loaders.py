"""The job's data loaders: how large their batches are, and which of them it has not used yet.

A loader that was made and not used is something that comes later: a test after the training, the
second stage of it. What its batches are like is not known, but how many samples they have is.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import wraps
from typing import Any
from weakref import WeakSet

from torch.utils.data import DataLoader, RandomSampler, dataloader


class Loaders:
    """Data loaders that there are, from now on."""

    def __init__(self) -> None:
        self._made: WeakSet[Any] = WeakSet()
        self._used: WeakSet[Any] = WeakSet()
        #: how often one was used to its end
        self.num_ends = 0
        make, iterate = DataLoader.__init__, DataLoader.__iter__

        @wraps(make)
        def seen_make(loader: Any, *args: Any, **kwargs: Any) -> None:
            make(loader, *args, **kwargs)
            self._made.add(loader)

        @wraps(iterate)
        def seen_iterate(loader: Any) -> Any:
            self._used.add(loader)
            return iterate(loader)

        DataLoader.__init__ = seen_make
        DataLoader.__iter__ = seen_iterate
        self._see_ends()

    def _see_ends(self) -> None:
        iterator: Any = dataloader._BaseDataLoaderIter
        give = iterator.__next__

        @wraps(give)
        def seen_give(batches: Any) -> Any:
            try:
                return give(batches)
            except StopIteration:
                self.num_ends += 1
                raise

        iterator.__next__ = seen_give

    @property
    def largest_unused(self) -> int:
        """The most samples in a batch of a loader that was not used yet; 0: there is none."""
        return _largest(loader for loader in self._made if loader not in self._used)

    @property
    def largest_unused_shuffled(self) -> int:
        """The same of those that shuffle, as for training."""
        unused = (loader for loader in self._made if loader not in self._used)
        return _largest(one for one in unused if isinstance(one.sampler, RandomSampler))


def _largest(loaders: Iterable[Any]) -> int:
    sizes = (getattr(loader.batch_sampler, "batch_size", None) for loader in loaders)
    return max((size for size in sizes if isinstance(size, int)), default=0)
