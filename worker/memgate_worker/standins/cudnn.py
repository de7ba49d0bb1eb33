"""A job's packages -> the real cuDNN among them, if it can be asked for plans.

Since version 9.8 cuDNN can plan for a device that is only described: `native/cudnn_real.h`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

#: the first that can plan for a device that is only described
FIRST_VERSION = (9, 8)

_LIBRARY = Path("nvidia", "cudnn", "lib", "libcudnn_graph.so.9")
_PACKAGE = re.compile(r"nvidia_cudnn_cu\d+-(\d+)\.(\d+)\.([\d.]+)\.dist-info")


class RealCudnn(NamedTuple):
    """NVIDIA's library, as the job has it."""

    version: str
    directory: Path


def find_cudnn(places: Iterable[Path]) -> RealCudnn | None:
    """Return the first cuDNN in these `site-packages`; None if it is missing or too old."""
    for place in places:
        if not (place / _LIBRARY).is_file():
            continue
        for package in sorted(place.glob("nvidia_cudnn_cu*.dist-info")):
            version = _PACKAGE.fullmatch(package.name)
            if version and (int(version[1]), int(version[2])) >= FIRST_VERSION:
                return RealCudnn(".".join(version.groups()), (place / _LIBRARY).parent)
        return None
    return None
