"""An installed torch -> a directory with the stand-ins for exactly that build of it.

They are kept in a cache and built once: `$MEMGATE_CACHE_DIR/standins`, or the user's cache
directory (`$XDG_CACHE_HOME/memgate/standins`, `~/.cache/memgate/standins`). The name of a directory
in it is a digest of the torch and of our sources, so the same torch elsewhere finds it too, and
another version of memgate builds its own. One that is there is complete: it appears under its name
only when it is done.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from memgate.errors import StandInsMissingError
from memgate_worker.standins.build import (
    CORE_NAME,
    STAMP_NAME,
    TRACKER_NAME,
    build,
    standins_digest,
)
from memgate_worker.standins.compiler import HOW_TO_GET_ONE, BuildError
from memgate_worker.standins.cudnn import RealCudnn, find_cudnn
from memgate_worker.standins.symbols import ALIASES_DIR
from memgate_worker.standins.torch_build import TorchBuild, read_torch_build

_CACHE_VARIABLE = "MEMGATE_CACHE_DIR"

#: how many lines of a failed compiler's output are shown
_NUM_LAST_LINES = 5

#: what is enough of the digest for a name
_NUM_DIGITS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Standins:
    """Stand-ins for one torch, and what goes with them."""

    directory: Path
    torch_version: str
    libraries: tuple[Path, ...]
    """To be loaded before torch, in this order, each with its symbols visible to all."""
    tracker: Path
    """Listens to torch's allocator; to be loaded after torch."""
    cudnn: str | None
    """The version of the job's own cuDNN, if it can be asked for plans."""
    cudnn_dir: Path | None
    """Where it is: for `memgate_phantom_open_cudnn` of the first library."""


def find_standins(torch_dir: Path, site_packages: Sequence[Path] = ()) -> Standins:
    """Return the stand-ins for an installed torch; build them if they are not in the cache.

    Args:
        torch_dir: the installed package, `.../site-packages/torch`.
        site_packages: where else the job's packages are, NVIDIA's for instance.

    Raises:
        UnsupportedJobError: it is not a torch with CUDA.
        StandInsMissingError: they are not in the cache and cannot be built; says what helps.
    """
    torch = read_torch_build(torch_dir)
    home = standins_home()
    directory = home / standins_digest(torch)[:_NUM_DIGITS]
    if not (directory / STAMP_NAME).is_file():
        with _explained(torch):
            _build_once(torch, directory)
    return _standins(torch, directory, find_cudnn((torch_dir.parent, *site_packages)))


def standins_home() -> Path:
    """Return where stand-ins are kept on this machine."""
    return cache_home() / "standins"


def cache_home() -> Path:
    """Return where all is kept that is built on this machine: one directory to take along."""
    said = os.environ.get(_CACHE_VARIABLE)
    return Path(said) if said else platformdirs.user_cache_path("memgate")


def _standins(torch: TorchBuild, directory: Path, cudnn: RealCudnn | None) -> Standins:
    return Standins(
        directory=directory,
        torch_version=torch.version,
        libraries=(
            directory / CORE_NAME,
            *sorted(path for path in directory.glob("lib*.so.*") if not path.is_symlink()),
            *sorted((directory / ALIASES_DIR).glob("lib*")),
        ),
        tracker=directory / TRACKER_NAME,
        cudnn=cudnn.version if cudnn else None,
        cudnn_dir=cudnn.directory if cudnn else None,
    )


def _build_once(torch: TorchBuild, directory: Path) -> None:
    """Build beside the final name and rename; of several processes, one builds."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _alone(directory):
        if (directory / STAMP_NAME).is_file():  # another process has built it meanwhile
            return
        fresh = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
        try:
            fresh.chmod(0o755)  # others of the machine may use it
            build(torch, fresh)
            shutil.rmtree(directory, ignore_errors=True)  # without a stamp it is what was left over
            fresh.rename(directory)
        except BaseException:
            shutil.rmtree(fresh, ignore_errors=True)
            raise


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    with (directory.parent / f".{directory.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def _explained(torch: TorchBuild) -> Iterator[None]:
    """Turn a failure of the compiler or of the disk into an error for the operator."""
    what = f"the stand-ins for NVIDIA's libraries under torch {torch.version} were not built"
    try:
        yield
    except BuildError as error:
        last = "\n".join(str(error).strip().splitlines()[-_NUM_LAST_LINES:])
        raise StandInsMissingError(f"{what}: {last}\n{HOW_TO_GET_ONE}") from None
    except OSError as error:
        raise StandInsMissingError(
            f"{what}: {error}; set {_CACHE_VARIABLE} to a directory that can be written to, or to"
            " one that has them already"
        ) from None
