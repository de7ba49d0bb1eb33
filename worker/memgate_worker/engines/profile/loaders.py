"""Ends data loaders early, so that what follows an epoch is seen, too. Needs torch.

A script evaluates its model after an epoch of a million steps; a profiler looks at three of them.
So a loader that feeds training has no more batches than those steps need, and the script goes on to
its evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data.dataloader import _BaseDataLoaderIter

#: steps after which it is known how many batches a step takes
_KNOWN_AFTER = 2


class LoaderLimit:
    """Counts the batches that every loader gives, and ends those that have given enough."""

    def __init__(self, num_steps: int, set_loading: Callable[[bool], None]) -> None:
        """Watch all loaders of this process.

        Args:
            num_steps: what batches are needed for.
            set_loading: called when a loader begins to work in this process, and when it ends.
        """
        self._num_steps = num_steps
        self._set_loading = set_loading
        #: by loader: how many batches it has given now, and when each step ended
        self._given: WeakKeyDictionary[Any, int] = WeakKeyDictionary()
        self._given_at: list[WeakKeyDictionary[Any, int]] = []
        #: at least one loader was ended early
        self.has_ended_any = False
        _BaseDataLoaderIter.__next__ = self._watch(_BaseDataLoaderIter.__next__)

    def after_step(self) -> None:
        """Note that a step was made."""
        self._given_at.append(WeakKeyDictionary(self._given))

    @property
    def is_used(self) -> bool:
        """A loader feeds the training."""
        return any(self._given_at)

    def _watch(self, get_next: Any) -> Any:
        def get_next_or_end(loader: Any) -> Any:
            if self._has_given_enough(loader):
                self.has_ended_any = True
                raise StopIteration
            with self._loading():
                batch = get_next(loader)
            self._given[loader] = self._given.get(loader, 0) + 1
            return batch

        return get_next_or_end

    def _has_given_enough(self, loader: Any) -> bool:
        """Say whether a loader has given all that training needs; one of an evaluation never has.

        Trainers look one batch ahead: what a step takes shows in the steps before.
        """
        if len(self._given_at) >= self._num_steps:
            return loader in self._given_at[-1]
        if len(self._given_at) < _KNOWN_AFTER or loader not in self._given_at[0]:
            return False
        first, second = (given.get(loader, 0) for given in self._given_at[:_KNOWN_AFTER])
        return self._given[loader] >= self._num_steps * (second - first)

    @contextmanager
    def _loading(self) -> Iterator[None]:
        self._set_loading(True)
        try:
            yield
        finally:
            self._set_loading(False)
