"""The job's data loaders: how large their batches are, and which of them it has not used yet.

A loader that was made and not used is something that comes later: a test after the training, the
second stage of it. How many samples its batches have is a setting of it; how large these are, in
comparison with those of the loaders that were used, is measured (``sample_sizes``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from functools import wraps
from typing import Any, Callable
from weakref import WeakKeyDictionary, WeakSet

from torch.utils.data import DataLoader, RandomSampler, dataloader

from .sample_sizes import SampleSize, measure_sample

#: where samples differ among themselves, those of another loader are larger from here on
_CLEARLY_LARGER = 2.0

#: samples in a batch of a loader, if that is not known; ``recorder.doubts`` has the same
UNKNOWN = 1 << 40


class Loaders:
    """Data loaders that there are, from now on."""

    def __init__(self, seen_elements: Callable[[], float] = lambda: 0.0) -> None:
        """Watch; ``seen_elements`` is how much a sample was that a model was called with."""
        self._seen_elements = seen_elements
        self._made: WeakSet[Any] = WeakSet()
        self._used: WeakSet[Any] = WeakSet()
        self._measured: WeakKeyDictionary[Any, SampleSize | None] = WeakKeyDictionary()
        #: the largest sample of a loader that was used, even if that is gone
        self._largest_used: SampleSize | None = None
        #: the job has ended: nothing comes later
        self.are_over = False
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
        """The most samples in a batch of a loader that was not used yet; 0: there is none.

        Samples that are larger than those of the loaders that were used count as several.
        """
        return self._largest(self._unused())

    @property
    def largest_unused_shuffled(self) -> int:
        """The same of those that shuffle, as for training."""
        return self._largest(
            one for one in self._unused() if isinstance(one.sampler, RandomSampler)
        )

    def _unused(self) -> list[Any]:
        return [] if self.are_over else [one for one in self._made if one not in self._used]

    def _largest(self, loaders: Iterable[Any]) -> int:
        return max((self._num_samples(loader) for loader in loaders), default=0)

    def _num_samples(self, loader: Any) -> int:
        size = getattr(loader.batch_sampler, "batch_size", None)
        if self._has_data_of_a_used_one(loader):
            return size if isinstance(size, int) else 0
        measured, usual = self._measure(loader), self._find_usual()
        if measured is None or not usual.elements:
            return UNKNOWN
        if loader.batch_sampler is None:  # what was measured is a whole batch
            return math.floor(measured.elements / (self._seen_elements() or usual.elements))
        ratio = measured.elements / usual.elements
        is_clear = ratio > (_CLEARLY_LARGER if measured.varies or usual.varies else 1.0)
        return math.ceil(size * (ratio if is_clear else 1.0)) if isinstance(size, int) else UNKNOWN

    def _find_usual(self) -> SampleSize:
        """Return the largest sample of a loader that was used; of none, what models were given."""
        for used in self._live_used():
            size = self._measure(used)
            if size is not None and size > (self._largest_used or size._replace(elements=0.0)):
                self._largest_used = size
        return self._largest_used or SampleSize(self._seen_elements(), varies=True)

    def _measure(self, loader: Any) -> SampleSize | None:
        if loader not in self._measured:
            self._measured[loader] = measure_sample(loader)
        return self._measured[loader]

    def _live_used(self) -> Iterator[Any]:
        return (loader for loader in self._made if loader in self._used)

    def _has_data_of_a_used_one(self, loader: Any) -> bool:
        """Tell whether a used loader has the same data, wrapped by a library or not."""
        return any(
            _is_behind(loader.dataset, used.dataset) and loader.collate_fn is used.collate_fn
            for used in self._live_used()
        )


def _is_behind(dataset: Any, wrapped: Any) -> bool:
    """Tell whether a data set is another one, or what that one wraps."""
    for _ in range(4):
        if wrapped is dataset:
            return True
        wrapped = getattr(wrapped, "dataset", None)
    return False
