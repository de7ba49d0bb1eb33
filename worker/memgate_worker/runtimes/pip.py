"""Runs the pip of an environment, which sees neither our packages nor the user's.

Indexes, certificates and proxies are as the user has set them for pip; places are not.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

#: settings of pip that would put packages elsewhere, or do something else
_NOT_PASSED_ON = frozenset(
    {
        *("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_USER", "PIP_PYTHON", "PIP_DRY_RUN"),
        *("PIP_NO_DEPS", "PIP_REQUIREMENT", "PIP_CONSTRAINT", "PIP_REQUIRE_VIRTUALENV"),
        *("PIP_REPORT", "PIP_IGNORE_INSTALLED", "PIP_QUIET", "PIP_VERBOSE"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pip:
    """The pip of one environment."""

    python: Path
    #: has room for what is downloaded: the folder for temporary files may be too small
    scratch: Path
    #: descriptor that it inherits: the lock of whoever asks is held until it ends, too
    lock: int

    def __call__(self, *arguments: str | Path) -> None:
        """Run it; what it prints is in the exception if it fails.

        Raises:
            CalledProcessError: if it fails.
        """
        quiet = ("-I", "-m", "pip", "--quiet", "--disable-pip-version-check")
        with tempfile.TemporaryDirectory(dir=self.scratch) as directory:
            subprocess.run(
                [self.python, *quiet, *arguments],
                env=pip_environment() | {"TMPDIR": directory},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                check=True,
                pass_fds=(self.lock,),
            )


def pip_environment() -> dict[str, str]:
    """Return this process's variables without those that would show an environment others' files.

    Also for the programs that pip starts to build packages.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("PYTHON") and name not in _NOT_PASSED_ON
    }
