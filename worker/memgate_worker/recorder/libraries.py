"""The folder of a torch -> our stand-ins for the NVIDIA libraries that it wants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from memgate_worker.runtimes.runtime import read_runtimes
from memgate_worker.standins.finding import find_standins


@dataclass(frozen=True, slots=True, kw_only=True)
class Libraries:
    """The stand-ins for one torch."""

    directory: Path
    #: the real cuDNN that they ask for plans; None: there is none that can be asked
    cudnn_dir: Path | None = None
    #: its version, or the package that brought it
    cudnn: str | None = None
    #: the real cuFFT's library, which is asked for the sizes of its work areas
    cufft: Path | None = None


def find_libraries(torch_dir: Path, path: Sequence[str]) -> Libraries:
    """Return the stand-ins for a torch, built if need be; ``path`` is where its process imports.

    Those of our runtimes are there already; others are kept in the user's cache.

    Raises:
        UnsupportedJobError: if it is not a torch for CUDA.
        StandInsMissingError: if they cannot be built; the message says what helps.
    """
    for runtime in read_runtimes().values():
        if runtime.is_installed and torch_dir.is_relative_to(runtime.venv):
            if not runtime.has_cudnn:
                return Libraries(directory=runtime.stubs)
            return Libraries(
                directory=runtime.stubs, cudnn_dir=runtime.cudnn_dir, cudnn=runtime.cudnn
            )
    found = find_standins(torch_dir, [Path(entry) for entry in path if entry])
    return Libraries(
        directory=found.directory,
        cudnn_dir=found.cudnn_dir,
        cudnn=found.cudnn,
        cufft=found.cufft,
    )
