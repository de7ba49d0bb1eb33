"""Programs of NVIDIA's that scripts call, for a GPU that is not there: a folder for ``PATH``."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from memgate_worker.recorder import nvidia_smi


def with_programs(environment: Mapping[str, str], run_dir: Path) -> dict[str, str]:
    """Return an environment whose ``PATH`` begins with a folder of stand-ins, which is made.

    It is in front of a real ``nvidia-smi``: that one would find no GPU, since real ones are hidden,
    and end a script that checks its status.
    """
    folder = run_dir / "programs"
    folder.mkdir()
    program = folder / "nvidia-smi"
    command = shlex.join([sys.executable, "-I", "-S", str(nvidia_smi.__file__)])
    program.write_text(f'#!/bin/sh\nexec {command} "$@"\n')
    program.chmod(0o755)
    path = environment.get("PATH", os.defpath)
    return dict(environment) | {"PATH": f"{folder}{os.pathsep}{path}"}
