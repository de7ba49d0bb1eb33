"""Makes the environments of tests that are marked ``environments``: 25 GB, 10 minutes."""

from __future__ import annotations

import subprocess
import venv

from tests.integration.test_environments import HOME, VERSIONS
from tests.integration.test_launchers import LAUNCHERS


def main() -> None:
    """Install each torch, and what starts jobs, as anyone would."""
    if not (HOME / "tools" / "made").is_file():
        venv.create(HOME / "tools", with_pip=True, clear=True)
        python = str(HOME / "tools" / "bin" / "python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", *LAUNCHERS], check=True)
        (HOME / "tools" / "made").touch()
    for version, _, _ in VERSIONS:
        home = HOME / f"torch-{version}"
        if (home / "made").is_file():
            continue
        venv.create(home, with_pip=True, clear=True)
        pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-cache-dir"]
        subprocess.run([*pip, f"torch=={version}", "numpy<2.3"], check=True)
        (home / "made").touch()


if __name__ == "__main__":
    main()
