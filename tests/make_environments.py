"""Makes the plain environments of ``tests/integration/test_environments.py``: 25 GB, 10 minutes."""

from __future__ import annotations

import subprocess
import venv

from tests.integration.test_environments import HOME, VERSIONS


def main() -> None:
    """Install each torch as anyone would."""
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
