"""Stand-ins: what is read of a torch and of libraries, and how they are kept."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import msgspec
import pytest

from memgate.errors import StandInsMissingError, UnsupportedJobError
from memgate_worker.standins import finding
from memgate_worker.standins.__main__ import main
from memgate_worker.standins.build import STAMP_NAME
from memgate_worker.standins.compiler import BuildError, compile_cxx, find_compiler
from memgate_worker.standins.cudnn import find_cudnn
from memgate_worker.standins.elf import NotElfError, read_elf
from memgate_worker.standins.finding import find_standins
from memgate_worker.standins.generated import version_script
from memgate_worker.standins.imports import Symbol
from memgate_worker.standins.names import known_names
from memgate_worker.standins.torch_build import TorchBuild, read_torch_build

VERSION = "__version__ = '2.9.1+cu128'\ndebug = False\ncuda: Optional[str] = '12.8'\n"
METADATA = "Name: torch\nRequires-Dist: nvidia-cudnn-cu12==9.10.2.21; platform_system\n"


@pytest.fixture
def torch_dir(tmp_path: Path) -> Path:
    """Make what of an installed torch is looked at; it cannot be built for."""
    package = tmp_path / "site-packages" / "torch"
    (package / "lib").mkdir(parents=True)
    (package / "version.py").write_text(VERSION)
    (package / "lib" / "libc10_cuda.so").write_bytes(b"library")
    info = package.parent / "torch-2.9.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(METADATA)
    return package


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Path]:
    """Note where something is built, instead of compiling for 20 seconds."""
    made: list[Path] = []

    def build(_: TorchBuild, out_dir: Path) -> None:
        made.append(out_dir)
        (out_dir / "libcuda.so.1").touch()
        (out_dir / STAMP_NAME).write_text("built")

    monkeypatch.setattr(finding, "build", build)
    monkeypatch.setenv("MEMGATE_CACHE_DIR", str(tmp_path / "cache"))
    return made


def test_versions_are_those_torch_was_built_for(torch_dir: Path) -> None:
    """From its package; what that does not pin follows from CUDA."""
    torch = read_torch_build(torch_dir)

    assert (torch.version, torch.cuda_version, torch.cuda_major) == ("2.9.1+cu128", 12080, 12)
    versions = torch.library_versions()
    assert versions["MEMGATE_CUDNN_VERSION"] == 91002
    assert versions["MEMGATE_CUBLAS_VERSION"] == 120800


def test_the_same_torch_elsewhere_is_the_same(torch_dir: Path, tmp_path: Path) -> None:
    """So that what was built for it is found from inside a container."""
    moved = shutil.copytree(torch_dir.parent, tmp_path / "elsewhere") / "torch"

    assert read_torch_build(moved).digest() == read_torch_build(torch_dir).digest()
    (moved / "lib" / "libc10_cuda.so").write_bytes(b"another library")
    assert read_torch_build(moved).digest() != read_torch_build(torch_dir).digest()


@pytest.mark.parametrize(
    ("said", "want"),
    [
        (None, "has no installed torch in it"),
        (
            "__version__ = '2.9.1+cpu'\ncuda: Optional[str] = None\n",
            r"torch 2\.9\.1\+cpu in .* with",
        ),
        ("", "torch of this kind in .* was built without CUDA"),
    ],
)
def test_a_torch_without_cuda_is_refused(torch_dir: Path, said: str | None, want: str) -> None:
    """With what to do: there is nothing to measure on it."""
    (torch_dir / "version.py").unlink()
    if said is not None:
        (torch_dir / "version.py").write_text(said)

    with pytest.raises(UnsupportedJobError, match=want):
        read_torch_build(torch_dir)


def test_stand_ins_are_built_once(torch_dir: Path, builds: list[Path], tmp_path: Path) -> None:
    """And appear under their name only when they are complete."""
    first = find_standins(torch_dir)
    second = find_standins(torch_dir)

    assert len(builds) == 1
    assert first == second
    assert first.directory.parent == tmp_path / "cache" / "standins"
    assert not builds[0].exists()
    assert [path.name for path in first.libraries] == ["libmemgate_phantom.so", "libcuda.so.1"]


def test_what_an_interrupted_build_left_does_not_count(torch_dir: Path, builds: list[Path]) -> None:
    """A directory without a stamp is made again."""
    directory = find_standins(torch_dir).directory
    (directory / STAMP_NAME).unlink()

    find_standins(torch_dir)

    assert len(builds) == 2
    assert (directory / STAMP_NAME).is_file()


def test_a_failed_build_leaves_nothing(
    torch_dir: Path, builds: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """With the compiler's last words, and what else can be done."""

    def build(_: TorchBuild, out_dir: Path) -> None:
        builds.append(out_dir)
        raise BuildError("g++ -c ... failed:\nno such header")

    monkeypatch.setattr(finding, "build", build)
    with pytest.raises(
        StandInsMissingError, match=r"(?s)2\.9\.1.*no such header.*MEMGATE_CACHE_DIR"
    ):
        find_standins(torch_dir)

    assert [path for path in (tmp_path / "cache" / "standins").iterdir() if path.is_dir()] == []


def test_a_cache_that_cannot_be_written_is_named(
    torch_dir: Path, builds: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A file is where the directory should be."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("MEMGATE_CACHE_DIR", str(tmp_path / "file"))

    with pytest.raises(StandInsMissingError, match="set MEMGATE_CACHE_DIR to a directory that can"):
        find_standins(torch_dir)
    assert builds == []


def test_the_users_cache_is_the_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As XDG says."""
    monkeypatch.delenv("MEMGATE_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    assert finding.standins_home() == tmp_path / "memgate" / "standins"


def test_without_a_compiler_the_message_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Debian, with conda, or on another machine."""
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setattr(shutil, "which", lambda _: None)

    want = r"apt install g\+\+.*conda install gxx.*MEMGATE_CACHE_DIR"
    with pytest.raises(StandInsMissingError, match=want):
        find_compiler()


def test_the_compiler_is_the_one_that_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With its options, as make reads it; and it is quoted when it fails."""
    monkeypatch.setenv("CXX", "ccache my-g++ -m64")

    assert find_compiler() == ["ccache", "my-g++", "-m64"]
    with pytest.raises(BuildError, match=r"(?s)-c \.\.\. failed.*wrong"):
        compile_cxx([sys.executable], "-c", "import sys; sys.exit('wrong')")


def test_another_python_is_told_in_json(
    torch_dir: Path, builds: list[Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The fields, or the error."""
    assert main([str(torch_dir)]) == 0
    assert json.loads(capsys.readouterr().out)["torch_version"] == "2.9.1+cu128"
    assert len(builds) == 1

    assert main([str(tmp_path)]) == 1
    assert json.loads(capsys.readouterr().out)["code"] == "UNSUPPORTED_JOB"


@pytest.mark.parametrize(
    ("version", "want"), [("9.10.2.21", "9.10.2.21"), ("9.8.0.87", "9.8.0.87"), ("9.1.0.70", None)]
)
def test_the_jobs_own_cudnn_is_used_from_9_8_on(
    tmp_path: Path, version: str, want: str | None
) -> None:
    """Older ones cannot plan for a device that is only described."""
    library = tmp_path / "nvidia" / "cudnn" / "lib" / "libcudnn_graph.so.9"
    library.parent.mkdir(parents=True)
    library.touch()
    (tmp_path / f"nvidia_cudnn_cu12-{version}.dist-info").mkdir()

    found = find_cudnn([tmp_path / "nowhere", tmp_path])

    assert (found.version if found else None) == want
    assert found is None or found.directory == library.parent
    assert find_cudnn([tmp_path / "nowhere"]) is None


def test_a_library_says_what_it_wants_and_of_whom() -> None:
    """A compiled module that every installation has, with versions of the C library."""
    found = read_elf(Path(msgspec._core.__file__))

    assert "PyInit__core" in {symbol.name for symbol in found.defined}
    assert any(one.soname == "libc.so.6" and "GLIBC" in one.name for one in found.needed_versions)
    assert "libc.so.6" in found.needed
    assert any(symbol.name.startswith("PyErr_") for symbol in found.wanted)


def test_a_text_is_not_a_library(tmp_path: Path) -> None:
    """Nothing is guessed."""
    (tmp_path / "libx.so").write_text("/* GNU ld script */")

    with pytest.raises(NotElfError, match=r"libx\.so is not a 64-bit ELF file"):
        read_elf(tmp_path / "libx.so")


def test_a_name_is_defined_once_whoever_asks_for_it() -> None:
    """With a version by one and without by another: a linker takes no name twice."""
    wanted = [Symbol("cudaFree", "libcudart.so.12", False), Symbol("cudaFree", "", False)]

    assert version_script(set(), wanted).count("cudaFree") == 1


@pytest.mark.parametrize(
    ("library", "names"),
    [
        ("libcudart", {"cudaMallocManaged", "cudaMemPrefetchAsync", "cudaGraphInstantiate"}),
        ("libcuda", {"cuCtxGetDevice", "cuLaunchKernelEx", "cuModuleLoadData", "cuMemAlloc_v2"}),
        ("libcublas", {"cublasGemmEx", "cublasXtCreate"}),
        ("libnvidia-ml", {"nvmlDeviceGetUtilizationRates", "nvmlDeviceGetMemoryInfo_v2"}),
    ],
)
def test_names_that_extensions_want_are_known(library: str, names: set[str]) -> None:
    """Beyond those of torch; of nothing that is not a call."""
    assert names <= known_names(library)
    assert not any(name.endswith(("_st", "_t", "_enum")) for name in known_names(library))
    assert known_names("libnothing") == frozenset()


def test_a_second_builder_finds_what_the_first_built(
    torch_dir: Path, builds: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for the lock, and then has nothing to do."""
    ready = find_standins(torch_dir).directory
    answers = iter([False, True, True])
    is_file = Path.is_file

    def not_yet(path: Path) -> bool:
        return next(answers) if path == ready / STAMP_NAME else is_file(path)

    monkeypatch.setattr(Path, "is_file", not_yet)
    find_standins(torch_dir)

    assert len(builds) == 1
    assert os.path.exists(ready / STAMP_NAME)
