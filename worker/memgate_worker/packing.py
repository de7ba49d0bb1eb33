"""This memgate -> one directory to bring into a container: packages, guard, stand-ins, a start.

The directory needs no compiler, no network and no right to write to it; only a Python of the same
version, which the container has or which is put into it (docs/standins.md). What `memgate run` does
there is no other than here.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from compileall import compile_dir
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from memgate.errors import InputError, OperatorError
from memgate_worker.guard.build import GuardBuildError, guard_files
from memgate_worker.standins.finding import cache_home, find_standins

#: ours; where they are imported from, a checkout too
_OUR_PACKAGES = ("memgate", "memgate_service", "memgate_worker")

_START = """\
#!/bin/sh
# memgate {version} for Python {python}, packed by: memgate pack
here=$(CDPATH= cd -- "$(dirname -- "$0")/.." && pwd -P) || exit 1
MEMGATE_CACHE_DIR=${{MEMGATE_CACHE_DIR:-$here/cache}}
export MEMGATE_CACHE_DIR
is_right='import sys; sys.exit("%d.%d" % sys.version_info[:2] != "{python}")'
start='import sys; sys.path.insert(0, sys.argv.pop(1)); sys.argv[0] = "memgate"
from memgate_service.cli.main import main; main()'
for python in "$here/python/bin/python{python}" python{python} python3; do
    if "$python" -I -c "$is_right" 2>/dev/null; then
        exec "$python" -I -c "$start" "$here/lib" "$@"
    fi
done
echo "memgate: $here was packed for Python {python}, and there is none here; install it, or put one\
 that can be moved into $here/python (uv python install)" >&2
exit 1
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """What a directory was made of."""

    start: Path
    """The program in it: `bin/memgate`."""
    python: str
    """The version of Python that it needs, as `3.12`."""
    torches: tuple[str, ...]
    """Versions of torch that it has stand-ins for."""
    size_bytes: int


def pack(target: Path, places: Sequence[Path]) -> Packed:
    """Make a new directory with all that `memgate run` needs but a Python.

    Args:
        target: does not exist yet.
        places: of each torch, its folder, or the environment that it is installed in.

    Raises:
        InputError: there is something at `target`, or no torch at one of `places`.
        OperatorError: the guard or stand-ins cannot be built, or the directory cannot be made.
    """
    if target.exists():
        raise InputError(f"{target}: there is something of that name already; name a new directory")
    found = [find_standins(_find_torch(place)) for place in places]
    try:
        guard = guard_files(cache_home() / "guard").library.parent
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=f".{target.name}.") as name:
            fresh = Path(name) / "fresh"
            _fill(fresh, guard, [one.directory for one in found])
            fresh.rename(target)
    except GuardBuildError as error:
        raise OperatorError(str(error)) from None
    except OSError as error:
        raise OperatorError(f"{target} was not made: {error.strerror} ({error.filename})") from None
    return Packed(
        start=target / "bin" / "memgate",
        python=_python(),
        torches=tuple(one.torch_version for one in found),
        size_bytes=sum(path.lstat().st_size for path in target.rglob("*") if path.is_file()),
    )


def _python() -> str:
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def _find_torch(place: Path) -> Path:
    """Return the folder of torch in an environment, or of which we were given the folder."""
    candidates = [place, *sorted(place.glob("lib/python3.*/site-packages/torch")), place / "torch"]
    for candidate in candidates:
        if (candidate / "version.py").is_file():
            return candidate.resolve()
    raise InputError(
        f"--torch {place}: there is no torch; name its folder (.../site-packages/torch), or the"
        " environment that it is installed in"
    )


def _fill(fresh: Path, guard: Path, standins: Sequence[Path]) -> None:
    lib = fresh / "lib"
    for name in _OUR_PACKAGES:
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        without = shutil.ignore_patterns("__pycache__")
        shutil.copytree(Path(spec.origin).parent, lib / name, ignore=without)
    for one in _needed("memgate", set()):
        _copy_distribution(one, lib)
    compile_dir(lib, quiet=2)  # where it is read-only, nothing compiled could be kept
    shutil.copytree(guard, fresh / "cache" / "guard" / guard.name)
    (fresh / "cache" / "standins").mkdir()
    for directory in standins:
        shutil.copytree(directory, fresh / "cache" / "standins" / directory.name, symlinks=True)
    start = fresh / "bin" / "memgate"
    start.parent.mkdir()
    start.write_text(_START.format(version=distribution("memgate").version, python=_python()))
    start.chmod(0o755)
    for path in (fresh, *fresh.rglob("*")):
        if path.is_dir():
            path.chmod(0o755)  # another user of the container may run it


def _needed(name: str, seen: set[str]) -> Iterator[Distribution]:
    """Yield what a package needs, itself included; `memgate run` needs none of the extras."""
    name = re.sub(r"[-_.]+", "-", name).lower()
    if name in seen:
        return
    seen.add(name)
    with suppress(PackageNotFoundError):  # for another platform or Python
        found = distribution(name)
        yield found
        for requirement in found.requires or ():
            wanted, _, condition = requirement.partition(";")
            match = re.match(r"[\w.-]+", wanted)
            if "extra" not in condition and match is not None:
                yield from _needed(match[0], seen)


def _copy_distribution(one: Distribution, lib: Path) -> None:
    """Copy a package's files; those outside of its folder are programs, and ours are there."""
    for file in one.files or ():
        source = Path(str(one.locate_file(file)))
        is_wanted = ".." not in file.parts and file.suffix not in {".pyc", ".pth"}
        if is_wanted and source.is_file() and not (lib / file).exists():
            (lib / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, lib / file)
