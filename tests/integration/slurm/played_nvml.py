"""NVIDIA's library, played for a lab without GPUs, and the node's scripts that load it."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from pathlib import Path

from tests.integration.slurm_lab import PLUGINS, SlurmLab

_SOURCE = Path(__file__).with_suffix(".c")


class PlayedNvml:
    """A library in a directory of its own; what it says is in files there."""

    def __init__(self, home: Path) -> None:
        self.home = home
        home.mkdir()
        home.chmod(0o777)
        library = home / "libnvidia-ml.so.1"
        command = ["cc", "-shared", "-fPIC", "-Wall", "-Werror", "-o", str(library), str(_SOURCE)]
        subprocess.run(command, check=True)
        (home / "processes").touch()
        (home / "processes").chmod(0o666)  # jobs write there

    @property
    def environment(self) -> dict[str, str]:
        """What a program needs that is to find it."""
        return {"LD_LIBRARY_PATH": str(self.home), "PLAYED_NVML": str(self.home)}

    def add_process(self, minor: int, pid: int, num_bytes: int, started: float = 0.0) -> None:
        """Have a process use a GPU."""
        line = f"{minor} {pid} {num_bytes} {int((started or time.time()) * 1e6)}\n"
        with (self.home / "processes").open("a") as file:
            file.write(line)

    def shell(self, minor: int, num_bytes: int) -> str:
        """Return the line of a job's script that uses a GPU."""
        line = f"{minor} $$ {num_bytes} $(date +%s%6N)"
        return f'echo "{line}" >> {self.home}/processes'


def measure(lab: SlurmLab, nvml: PlayedNvml, url: str, key_file: Path) -> None:
    """Have the lab's nodes run the shipped prolog and epilog."""
    lab.measuring.mkdir()
    program = lab.measuring / "memgate"
    main = shlex.quote("from memgate_service.cli.main import main; main()")
    directory = lab.measuring / "files"
    program.write_text(
        f"#!/bin/sh\nexec {sys.executable} -I -c {main}"
        f' "$@" --directory {directory} 2>> {lab.measuring}/errors\n'
    )
    program.chmod(0o755)
    variables = {"MEMGATE": str(program), "MEMGATE_URL": url, **nvml.environment}
    for name in ("prolog", "epilog"):
        script = (PLUGINS / f"memgate-{name}.sh").read_text()
        script = script.replace("/etc/slurm/memgate-users.key", str(key_file))
        settings = "".join(f"export {key}={value}\n" for key, value in variables.items())
        path = lab.measuring / f"{name}.sh"
        path.write_text(script.replace("#!/bin/sh\n", f"#!/bin/sh\n{settings}", 1))
        path.chmod(0o755)
