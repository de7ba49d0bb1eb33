"""The default runtime with the real cuDNN, beside the default runtime without it.

``python -m tests.cudnn_runtime`` builds it (``make test`` does): the environment is the same one,
only cuDNN is added. It is apart, so that having run the tests does not change what is estimated.
"""

from __future__ import annotations

from dataclasses import replace

from memgate_worker.runtimes.runtime import DEFAULT_RUNTIME, default_home, read_runtimes
from memgate_worker.runtimes.setup import install_cudnn

PLAIN = read_runtimes()[DEFAULT_RUNTIME]
WITH_CUDNN = replace(PLAIN, home=default_home() / "with-cudnn" / DEFAULT_RUNTIME)


def main() -> None:
    """Make it out of the default runtime."""
    WITH_CUDNN.home.mkdir(parents=True, exist_ok=True)
    for name in ("venv", "stubs", "built"):
        link = WITH_CUDNN.home / name
        if not link.is_symlink():
            link.symlink_to(PLAIN.home / name)
    install_cudnn(WITH_CUDNN)


if __name__ == "__main__":
    main()
