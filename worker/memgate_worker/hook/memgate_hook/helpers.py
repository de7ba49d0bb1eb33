"""Processes that do what this one tells them, and nothing else: they end with it.

Workers of data loaders and of pools wait for work of this process. Compile workers, trackers of
shared memory and what reports to people never use a GPU. Anything else that the job has started may
go on without it, and use the GPU later: an evaluation in the background, a daemon.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

#: classes whose objects have workers, by the names of their modules and their own
_POOLS = {
    ("torch.utils.data.dataloader", "_MultiProcessingDataLoaderIter"): "_workers",
    ("multiprocessing.pool", "Pool"): "_pool",
    ("multiprocessing.managers", "BaseManager"): "_process",
    ("concurrent.futures.process", "ProcessPoolExecutor"): "_processes",
    ("joblib.externals.loky.process_executor", "ProcessPoolExecutor"): "_processes",
    ("loky.process_executor", "ProcessPoolExecutor"): "_processes",
}

#: in the command lines of programs that never use a GPU
_WITHOUT_A_GPU = (
    *("multiprocessing.resource_tracker", "multiprocessing.forkserver", "loky.backend"),
    *("torch/_inductor/compile_worker", "torch._inductor.compile_worker"),
    *("wandb-core", "gpu_stats", "tensorboard", "mlflow", "nvidia_smi.py"),
)

_PROC = Path("/proc")


def find_helpers(children: Iterable[int], proc: Path = _PROC) -> list[int]:
    """Return the processes that need not be waited for when this one has ended.

    Args:
        children: the processes that this one has started.
        proc: where Linux tells of processes.
    """
    known = [pid for pid in children if _never_uses_a_gpu(pid, proc)]
    if len(known) < len([*children]):
        known += _find_workers(gc.get_objects())
    return sorted({*known})


def _never_uses_a_gpu(pid: int, proc: Path) -> bool:
    try:
        command = (proc / str(pid) / "cmdline").read_text(errors="replace")
    except OSError:  # it has ended
        return True
    return any(word in command for word in _WITHOUT_A_GPU)


def _find_workers(objects: Iterable[Any]) -> Iterator[int]:
    for one in objects:
        for kind in type(one).__mro__:
            name = _POOLS.get((kind.__module__, kind.__name__))
            if name is not None:
                yield from _pids(getattr(one, name, None))


def _pids(workers: Any) -> Iterator[int]:
    if isinstance(workers, dict):  # by their ids
        workers = [*workers.values()]
    for worker in workers if isinstance(workers, list) else [workers]:
        with contextlib.suppress(AttributeError, ValueError):  # there is none, or it is closed
            if worker.pid is not None:
                yield int(worker.pid)
