"""The folder of a torch -> our stand-ins for the NVIDIA libraries that it wants."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from memgate_worker.recorder.listening import Libraries
from memgate_worker.runtimes.runtime import read_runtimes


def find_libraries(torch_dir: Path, path: Sequence[str]) -> Libraries:
    """Return the stand-ins for a torch, built if need be."""
    del path
    for runtime in read_runtimes().values():
        if runtime.is_installed and torch_dir.is_relative_to(runtime.venv):
            cudnn = runtime.cudnn_dir if runtime.has_cudnn else None
            return Libraries(directory=runtime.stubs, cudnn_dir=cudnn)
    raise NotImplementedError
