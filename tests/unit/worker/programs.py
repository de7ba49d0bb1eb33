"""What installs a runtime, pretended: pip, the compiler, environments."""

from __future__ import annotations

import shutil
import subprocess
import venv
import zipfile
from pathlib import Path

import pytest

from memgate_worker.runtimes import install as installing
from memgate_worker.runtimes.pip import Pip
from memgate_worker.runtimes.runtime import OWN_NEEDS
from memgate_worker.standins.build import STAMP_NAME

PIP_FAILED = subprocess.CalledProcessError(
    1, "pip", stderr="WARNING: a mirror is away\nERROR: no such version\n"
)


class Programs:
    """Stands for pip and the compiler, which would download 1.7 GB and take a minute.

    What they do is in ``tests/packaging/test_wheel.py``, for real.
    """

    def __init__(self, log: Path) -> None:
        self._log = log
        #: what the steps of these names raise
        self.fails: dict[str, BaseException] = {}
        #: the versions that pip was last held to
        self.constraints = ""

    @classmethod
    def put_in_place(cls, log: Path, patch: pytest.MonkeyPatch) -> Programs:
        """Have them used, in this process and its forks."""
        made = cls(log)
        patch.setattr(venv, "create", made.create)
        patch.setattr(Pip, "__call__", lambda *arguments: made.pip(*arguments))
        patch.setattr(installing, "build", made.build)
        patch.setattr(installing, "read_torch_build", lambda directory: directory)
        return made

    @property
    def done(self) -> list[str]:
        """What was asked for, in order, by whichever process."""
        return self._log.read_text().split() if self._log.exists() else []

    def _do(self, step: str) -> None:
        with self._log.open("a") as log:
            log.write(f"{step}\n")
        if step in self.fails:
            raise self.fails[step]

    def create(self, home: Path, **_: object) -> None:
        """Make an environment without anything in it."""
        shutil.rmtree(home, ignore_errors=True)
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "python").touch()
        (home / "lib" / "python3.11" / "site-packages").mkdir(parents=True)

    def pip(self, pip: Pip, command: str, *arguments: str | Path) -> None:
        """Install packages of which nothing but the name is there, or download cuDNN."""
        self._do(command)
        home = pip.python.parents[2]
        if command == "download":
            wheel = Path(arguments[arguments.index("--dest") + 1]) / "cudnn.whl"
            with zipfile.ZipFile(wheel, "w") as archive:
                archive.writestr("nvidia/cudnn/lib/libcudnn_graph.so.9", "")
            return
        if "--target" in arguments:
            for name in OWN_NEEDS:
                info = home / "own" / f"{name}-99.0.dist-info"
                info.mkdir(parents=True)
                (info / "METADATA").write_text(f"Name: {name}\nVersion: 99.0\n")
            return
        site_packages = home / "venv" / "lib" / "python3.11" / "site-packages"
        for name, pinned, version in (str(given).partition("==") for given in arguments):
            if pinned:
                info = site_packages / f"{name}-{version}.dist-info"
                info.mkdir(exist_ok=True)
                (info / "METADATA").write_text(f"Name: {name}\nVersion: {version}\n")
        if command == "uninstall":
            for given in arguments:
                for info in site_packages.glob(f"{given}-*.dist-info"):
                    shutil.rmtree(info)
        if "--constraint" in arguments:
            self.constraints = Path(arguments[arguments.index("--constraint") + 1]).read_text()

    def build(self, _: object, out_dir: Path) -> None:
        """Build the stand-ins."""
        self._do("build")
        out_dir.mkdir()
        (out_dir / STAMP_NAME).write_text("built")
