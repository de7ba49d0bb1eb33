"""Which NCCL a PyTorch brings along."""

from __future__ import annotations

import re

from memgate.nccl.parts import USUAL_VERSION

#: by PyTorch's minor version, what its wheels require (``nvidia-nccl-cu12`` in their metadata)
_BY_TORCH = {
    1: (2, 18),
    2: (2, 19),
    3: (2, 20),
    4: (2, 20),
    5: (2, 21),
    6: (2, 21),
    7: (2, 26),
    8: (2, 27),
}

#: of what is older than the table
_OLDER = (2, 14)


def nccl_version(torch: str) -> tuple[int, int]:
    """Return the major and minor version; the usual one if PyTorch's own is not known or newer."""
    match = re.match(r"(\d+)\.(\d+)", torch)
    if match is None:
        return USUAL_VERSION
    major, minor = map(int, match.groups())
    if (major, minor) < (2, 1):
        return _OLDER
    return _BY_TORCH.get(minor, USUAL_VERSION) if major == 2 else USUAL_VERSION
