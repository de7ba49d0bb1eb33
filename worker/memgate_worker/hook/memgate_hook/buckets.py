"""Notes where DDP allocates its buckets: no tensor of the job's shows what they are."""

from __future__ import annotations

from typing import Any, Callable

import torch

from .compiling import watch_calls


class Buckets:
    """Collects the rows between which ``DistributedDataParallel`` made buckets."""

    def __init__(self, position: Callable[[], int]) -> None:
        """Listen from now on; ``position`` returns how many rows there are."""
        self._position = position
        self.spans: list[tuple[int, int]] = []
        self._began = 0
        if not torch.distributed.is_available():
            return
        ddp, reducer = torch.nn.parallel.DistributedDataParallel, torch.distributed.Reducer
        ddp._ddp_init_helper = watch_calls(ddp._ddp_init_helper, self._begins, self._ends)
        # after the first iteration, in the order in which gradients came
        reducer._rebuild_buckets = watch_calls(reducer._rebuild_buckets, self._begins, self._ends)

    def _begins(self, *_: Any, **__: Any) -> None:
        self._began = self._position()

    def _ends(self, *_: Any, **__: Any) -> None:
        if self._position() > self._began:
            self.spans.append((self._began, self._position()))
