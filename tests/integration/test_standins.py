"""Stand-ins built for a torch that is not ours to change: here the one of an installed runtime."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from memgate_worker.runtimes.runtime import Runtime, read_runtimes
from memgate_worker.standins.build import CORE_NAME, TRACKER_NAME
from memgate_worker.standins.elf import ElfFile, read_elf
from memgate_worker.standins.finding import Standins, find_standins
from memgate_worker.standins.symbols import LISTENERS
from tests import environments

RUNTIMES = read_runtimes()
TRAINING = Path(environments.__file__).parent / "training.py"
EXTENSION = Path(environments.__file__).parent / "extension.py"

#: its functions in namespace std, operators new and delete, and what the compiler calls
_OF_THE_CXX_LIBRARY = ("_ZNSt", "_ZNKSt", "_ZSt", "_Zn", "_Zd", "__cxa", "__gxx")

#: the C library that the oldest systems have which PyTorch supports
OLDEST_GLIBC = (2, 28)


@pytest.fixture(scope="module", params=sorted(RUNTIMES))
def runtime(request: pytest.FixtureRequest) -> Runtime:
    """Each runtime that is installed: torch without NVIDIA's packages."""
    runtime = RUNTIMES[request.param]
    if not runtime.is_installed:
        pytest.skip(f"runtime {runtime.name} is not built: make runtime RUNTIME={runtime.name}")
    return runtime


@pytest.fixture(scope="module")
def standins(runtime: Runtime, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standins]:
    """Build them, into a cache of the test's own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MEMGATE_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield find_standins(runtime.site_packages / "torch")


def run_program(python: Path, program: Path, standins: Standins, *arguments: str) -> Any:
    """Run a program on the phantom, in an environment that knows nothing of memgate."""
    fields = json.dumps(asdict(standins), default=str)
    done = subprocess.run(
        [python, program, fields, *arguments],
        env={"PATH": "/usr/bin:/bin", "HOME": "/tmp"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("model", ["cnn", "gpt"])
def test_a_model_trains_as_in_our_runtime(runtime: Runtime, standins: Standins, model: str) -> None:
    """The same events, of the same size, in the same order, on the same streams."""
    ours = replace(
        standins,
        libraries=(runtime.stubs / CORE_NAME, *sorted(runtime.stubs.glob("lib*.so.*"))),
        tracker=runtime.stubs / TRACKER_NAME,
    )
    want = run_program(runtime.python, TRAINING, ours, model)
    got = run_program(runtime.python, TRAINING, standins, model)

    assert got["rows"] == want["rows"]
    assert len(got["rows"]) > 500
    assert got["peak_reserved_bytes"] == want["peak_reserved_bytes"]
    assert got["refused"] == []


def test_any_extension_loads_and_is_refused_when_it_calls(
    runtime: Runtime, standins: Standins
) -> None:
    """Managed memory, the driver's own memory and launches work; what is not modelled is named."""
    said = run_program(runtime.python, EXTENSION, standins)

    assert said["managed"] == [7, 7]
    assert said["used_bytes"] == [4 << 20, 0]
    assert said["copied"] == "abcd"
    assert said["launches"] == 1
    assert said["refused"] == ["cudaGraphInstantiate"]
    assert said["error"] == "memgate phantom: cudaGraphInstantiate is not modelled"
    assert said["by_other_name"] == 1


def _files(standins: Standins) -> list[Path]:
    return [path for path in standins.directory.rglob("lib*") if not path.is_symlink()]


def _versions(file: ElfFile, kind: str) -> list[tuple[int, ...]]:
    found = (re.fullmatch(rf"{kind}_([\d.]+)", one.name) for one in file.needed_versions)
    return [tuple(map(int, match[1].split("."))) for match in found if match]


def test_stand_ins_load_on_old_systems(standins: Standins) -> None:
    """No newer C library than PyTorch itself asks for, and no C++ library at all."""
    for path in _files(standins):
        file = read_elf(path)
        assert max(_versions(file, "GLIBC"), default=(0,)) <= OLDEST_GLIBC, path.name
        if path.name not in LISTENERS:
            assert not {"libstdc++.so.6", "libgcc_s.so.1"} & set(file.needed), path.name


@pytest.mark.parametrize("name", LISTENERS)
def test_listeners_ask_for_no_newer_library_than_torch(
    runtime: Runtime, standins: Standins, name: str
) -> None:
    """They share torch's classes, and so the C++ library that torch has loaded."""
    listener = read_elf(standins.directory / name)
    torch = read_elf(runtime.site_packages / "torch" / "lib" / "libc10.so")
    for kind in ("GLIBC", "GLIBCXX", "CXXABI", "GCC"):
        assert max(_versions(listener, kind), default=(0,)) <= max(_versions(torch, kind))


def test_nothing_of_the_cxx_library_is_shown_to_others(standins: Standins) -> None:
    """A process has one of its own, which ours must not mix with."""
    for path in _files(standins):
        shown = {symbol.name for symbol in read_elf(path).defined}
        leaked = [name for name in shown if name.startswith(_OF_THE_CXX_LIBRARY)]
        assert leaked == [], path.name


def test_a_second_question_needs_no_compiler(
    runtime: Runtime, standins: Standins, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are found in the cache."""
    monkeypatch.setenv("MEMGATE_CACHE_DIR", str(standins.directory.parents[1]))
    monkeypatch.setenv("CXX", "/nowhere/g++")

    assert find_standins(runtime.site_packages / "torch") == standins
