"""An installed torch -> what must be known of it to build stand-ins for it.

Reads files of the package only: torch is not imported, and may belong to another Python.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from memgate.errors import UnsupportedJobError
from memgate_worker.standins.elf import read_elf

_VERSION = re.compile(r"^__version__ = '([^']+)'", re.MULTILINE)
_CUDA = re.compile(r"^cuda(?:: [^=]+)? = '(\d+)\.(\d+)'", re.MULTILINE)

#: a constructor of c10::Error
_ERROR_WITH_NEW_STRING = re.compile(r"_ZN3c105ErrorC\dE\w*__cxx11")

#: sub-versions, when torch's own package does not pin NVIDIA's
_DEFAULT_CUDNN = (9, 1, 0)
_DEFAULT_NCCL = (2, 21, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """One build of torch."""

    directory: Path
    """The installed package, `.../site-packages/torch`."""
    version: str
    cuda_version: int
    """As CUDA itself counts: 12080 is CUDA 12.8."""
    files: tuple[Path, ...]
    """Its libraries, and those of packages built on it, that want something of NVIDIA's."""

    @property
    def cuda_major(self) -> int:
        """The part of the CUDA version that is in the names of most libraries."""
        return self.cuda_version // 1000

    @property
    def cuda_text(self) -> str:
        """The CUDA version as people write it: 12.8."""
        return f"{self.cuda_major}.{self.cuda_version % 1000 // 10}"

    @property
    def uses_new_strings(self) -> bool:
        """Which of the two layouts of std::string it was built with.

        Asked of a function of its own: parts of the C++ library in the same file have either.
        """
        symbols = read_elf(self.directory / "lib" / "libc10.so").defined
        return any(_ERROR_WITH_NEW_STRING.match(symbol.name) for symbol in symbols)

    def digest(self) -> str:
        """Identify the build, wherever it is installed."""
        said = (self.directory / "version.py").read_text()
        files = sorted((path.name, path.stat().st_size) for path in self.files)
        return hashlib.sha256(repr((said, self._requirements(), files)).encode()).hexdigest()

    def library_versions(self) -> dict[str, int]:
        """Return the versions that our stand-ins claim to be, by the name of their macro.

        They are those torch was built for: it compares them with its own when it starts.
        """
        cublas = self._pinned("cublas", (self.cuda_major, self.cuda_version % 1000 // 10, 0))
        return {
            "MEMGATE_CUDA_VERSION": self.cuda_version,
            "MEMGATE_CUDNN_VERSION": self._pinned("cudnn", _DEFAULT_CUDNN),
            "MEMGATE_NCCL_VERSION": self._pinned("nccl", _DEFAULT_NCCL),
            "MEMGATE_CUBLAS_VERSION": cublas,
        }

    def _pinned(self, package: str, default: tuple[int, int, int]) -> int:
        pattern = rf"nvidia-{package}-cu\d+ ?\(?==(\d+)\.(\d+)\.(\d+)"
        match = re.search(pattern, self._requirements())
        major, minor, patch = map(int, match.groups()) if match else default
        return major * 10000 + minor * 100 + patch

    def _requirements(self) -> str:
        metadata = sorted(self.directory.parent.glob("torch-*.dist-info/METADATA"))
        text = "\n".join(path.read_text() for path in metadata)
        return "\n".join(re.findall(r"^Requires-Dist: (nvidia-.*)$", text, re.MULTILINE))


def read_torch_build(torch_dir: Path) -> TorchBuild:
    """Read which torch is installed in a directory.

    Raises:
        UnsupportedJobError: if it is not a torch with CUDA.
    """
    try:
        said = (torch_dir / "version.py").read_text()
    except OSError:
        raise UnsupportedJobError(f"{torch_dir} has no installed torch in it") from None
    version, cuda = _VERSION.search(said), _CUDA.search(said)
    if version is None or cuda is None or not (torch_dir / "lib" / "libc10_cuda.so").is_file():
        name = version[1] if version else "of this kind"
        raise UnsupportedJobError(
            f"torch {name} in {torch_dir} was built without CUDA, so a job with it uses no GPU;"
            " install the build that the job has on its GPU (no GPU is needed to install it)"
        )
    vision = torch_dir.parent / "torchvision"
    return TorchBuild(
        directory=torch_dir,
        version=version[1],
        cuda_version=int(cuda[1]) * 1000 + int(cuda[2]) * 10,
        files=tuple(
            sorted([*torch_dir.glob("lib/*.so*"), *torch_dir.glob("_C*.so"), *vision.glob("*.so")])
        ),
    )
