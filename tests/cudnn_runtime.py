"""The default runtime with the real cuDNN, beside the default runtime without it.

``python -m tests.cudnn_runtime`` makes it (``make test`` does): the environment is the same one,
only cuDNN is added. It is apart, so that having run the tests does not change what is estimated.
"""

from __future__ import annotations

from dataclasses import replace

from memgate_worker.runtimes.install import install
from memgate_worker.runtimes.runtime import DEFAULT_RUNTIME, default_home, read_runtimes
from tests.runtimes import share_libraries

PLAIN = read_runtimes()[DEFAULT_RUNTIME]
WITH_CUDNN = replace(PLAIN, home=default_home() / "with-cudnn" / DEFAULT_RUNTIME)


def main() -> None:
    """Make it out of the default runtime."""
    install(share_libraries(PLAIN, WITH_CUDNN.home), with_cudnn=True)


if __name__ == "__main__":
    main()
