"""Runtimes from a job's own requirements file, by the real pip, out of small packages of ours.

They stand for torch and its relatives, which are gigabytes. NVIDIA's are not among them: pip must
not ask for them.
"""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from memgate.errors import InputError, RuntimeMissingError
from memgate_worker.runtimes import install as installing
from memgate_worker.runtimes.contents import read_contents
from memgate_worker.runtimes.install import Installation, install, plan_requirements, remove
from memgate_worker.runtimes.runtime import OWN_NEEDS, RuntimeState, find_runtime, read_runtimes
from memgate_worker.standins.build import STAMP_NAME

TORCH_NEEDS = (
    "filelock",
    'nvidia-cudnn-cu12 (==9.10.2.21) ; platform_system == "Linux"',
    'nvidia-nccl-cu12 (==2.21.5) ; platform_system == "Linux"',
    'triton (==3.2.0) ; platform_system == "Linux"',
)


def make_wheel(
    folder: Path, name: str, version: str, *needs: str, files: dict[str, str] | None = None
) -> Path:
    """Write a package with a module of its name, or with these files."""
    stem = f"{name}-{version}"
    texts = dict(files or {f"{name}.py": f"__version__ = {version!r}\n"})
    requires = "".join(f"Requires-Dist: {need}\n" for need in needs)
    texts[f"{stem}.dist-info/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{requires}"
    )
    texts[f"{stem}.dist-info/WHEEL"] = (
        "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    texts[f"{stem}.dist-info/RECORD"] = "".join(
        f"{path},sha256={_digest(text)},{len(text)}\n" for path, text in texts.items()
    )
    wheel = folder / f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in texts.items():
            archive.writestr(path, text)
    return wheel


def _digest(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()


def make_torch(folder: Path, version: str) -> Path:
    """Write what looks like a torch for CUDA."""
    said = f"__version__ = '{version}'\ncuda = '12.4'\n"
    files = {"torch/__init__.py": "", "torch/version.py": said, "torch/lib/libc10_cuda.so": ""}
    return make_wheel(folder, "torch", version, *TORCH_NEEDS, files=files)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make an index of small packages, the only one that pip knows."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for version in ("2.2.0", "2.5.0", "2.6.0"):
        make_torch(folder, version)
    make_wheel(folder, "filelock", "3.0")
    make_wheel(folder, "vision", "0.20", "torch==2.5.0", "filelock")
    make_wheel(folder, "kernels", "1.0", "triton>=3")
    make_wheel(folder, "middle", "1.0", "kernels")
    make_wheel(folder, "triton", "3.2.0")
    for name in OWN_NEEDS:
        make_wheel(folder, name, "9.0", *(["helper"] if name == "pydantic" else []))
    make_wheel(folder, "pydantic", "1.10")
    make_wheel(folder, "helper", "1.0")
    make_wheel(folder, "helper", "2.0")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    # none of this may have any influence
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "theirs"))
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("PIP_USER", "1")
    (tmp_path / "theirs").mkdir()
    make_wheel(tmp_path / "theirs", "filelock", "3.0")
    return folder


Installing = Callable[..., Installation]


@pytest.fixture
def make(tmp_path: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> Installing:
    """Return what installs the text of a requirements file; stand-ins are not built."""

    def build(_: object, out_dir: Path) -> None:
        out_dir.mkdir()
        (out_dir / STAMP_NAME).write_text("built")

    monkeypatch.setattr(installing, "build", build)

    def installed(text: str, name: str = "lab", **options: Any) -> Installation:
        path = tmp_path / "requirements.txt"
        path.write_text(text)
        return install(plan_requirements(path, name, tmp_path / "home"), **options)

    return installed


def _versions(made: Installation) -> dict[str, str]:
    code = (
        "import importlib.metadata as m, json;"
        "print(json.dumps({d.name: d.version for d in m.distributions()}))"
    )
    command = [str(made.runtime.python), "-I", "-c", code]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {name: version for name, version in json.loads(said).items() if name != "setuptools"}


def test_it_has_what_the_file_says_and_nothing_of_nvidias(make: Installing, tmp_path: Path) -> None:
    """Nested files and comments are pip's; what memgate needs is where jobs do not see it."""
    (tmp_path / "base.txt").write_text("torch==2.6.0  # of the job\n")
    text = "# my job\n-r base.txt\nhelper<2\n"
    said: list[str] = []
    made = make(text, report=said.append)

    versions = _versions(made)
    assert versions.pop("pip")
    assert versions == {"torch": "2.6.0", "filelock": "3.0", "helper": "1.0"}
    own = {path.name for path in made.runtime.own.glob("*.dist-info")}
    # in the version that the job has, not in a newer one
    assert own == {*(f"{name}-9.0.dist-info" for name in OWN_NEEDS), "helper-1.0.dist-info"}
    assert made.runtime.description == "torch 2.6.0, CUDA 12.4"
    assert made.runtime.cudnn == "nvidia-cudnn-cu12==9.10.2.21"
    assert find_runtime("lab", tmp_path / "home") == made.runtime
    has = read_contents(made.runtime)
    assert (has.torch, has.python) == ("2.6.0", f"3.{sys.version_info[1]}")
    assert said[0].startswith("asking pip what ")
    assert not (tmp_path / "elsewhere").exists()

    # the same again is quick; another text under the same name is not
    assert not make(text).changed
    changed = make("vision\n")
    assert changed.changed
    assert _versions(changed)["torch"] == "2.5.0"
    assert remove(changed.runtime) > 0
    assert "lab" not in read_runtimes(tmp_path / "home")


@pytest.mark.slow
def test_pip_may_choose_an_older_torch_for_a_library(make: Installing) -> None:
    """The file alone would bring the newest one."""
    versions = _versions(make("torch\nvision\n"))

    assert (versions["torch"], versions["vision"]) == ("2.5.0", "0.20")
    assert not [name for name in versions if name.startswith(("nvidia", "triton"))]


@pytest.mark.slow
def test_triton_is_there_if_a_library_needs_it(make: Installing) -> None:
    """However far from the file: torch alone does not count."""
    assert _versions(make("torch==2.6.0\nmiddle\n"))["triton"] == "3.2.0"


@pytest.mark.slow
def test_hashes_are_checked_by_pip(make: Installing, wheels: Path, tmp_path: Path) -> None:
    """A file with hashes names everything, NVIDIA's packages too, which are not downloaded."""
    names = ("torch-2.6.0", "filelock-3.0", "triton-3.2.0")
    found = {name: wheels / f"{name}-py3-none-any.whl" for name in names}
    lines = [
        f"{name.replace('-', '==')} --hash=sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
        for name, path in found.items()
    ]
    assert _versions(make("\n".join(lines)))["triton"] == "3.2.0"

    with pytest.raises(RuntimeMissingError, match="DO NOT MATCH THE HASHES"):
        make("\n".join(lines).replace("sha256:", "sha256:00")[: -2 * len(lines)], "other")
    assert "other" not in read_runtimes(tmp_path / "home")


@pytest.mark.parametrize(
    ("text", "error", "want"),
    [
        ("filelock\n", InputError, "brings no torch"),
        ("torch==2.2.0\n", InputError, r"brings torch 2\.2\.0, and .* torch 2\.3 to 2\.14"),
        ("torch==2.6.0\npydantic<2\n", InputError, r"would have pydantic 1\.10, .* needs 2\.6"),
        ("-r missing.txt\n", RuntimeMissingError, r"missing\.txt"),
    ],
)
def test_what_cannot_be_a_runtime_leaves_nothing(
    make: Installing, tmp_path: Path, text: str, error: type[Exception], want: str
) -> None:
    """One sentence, with what is wrong; pip's own words where it is pip that refuses."""
    with pytest.raises(error, match=want):
        make(text)

    left = {path.name for path in (tmp_path / "home").iterdir() if not path.name.startswith(".")}
    assert left == set()


@pytest.mark.slow
def test_a_failure_does_not_cost_the_runtime_that_works(make: Installing) -> None:
    """Versions are chosen before anything is replaced."""
    runtime = make("torch==2.6.0\n").runtime
    with pytest.raises(RuntimeMissingError):
        make("torch==9.9\n")

    assert runtime.state is RuntimeState.INSTALLED


@pytest.mark.slow
def test_an_interrupted_installation_can_be_run_again(
    make: Installing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the libraries: only the stand-ins are built."""
    with monkeypatch.context() as patch:

        def killed(*_: object) -> None:
            raise KeyboardInterrupt

        patch.setattr(installing, "build", killed)
        with pytest.raises(KeyboardInterrupt):
            make("torch==2.6.0\n")
    left = read_runtimes(tmp_path / "home")["lab"]
    assert left.state is RuntimeState.OUTDATED

    said: list[str] = []
    assert make("torch==2.6.0\n", report=said.append).changed
    assert said == ["building the stand-ins for NVIDIA's libraries"]
