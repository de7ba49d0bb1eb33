"""A job's packages -> the real cuFFT among them, which knows how large its work areas are.

How it is asked is in `native/cufft_real.h`.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


def find_cufft(places: Iterable[Path], standins_dir: Path) -> Path | None:
    """Return the library in these `site-packages` that torch would load; None if it is missing.

    Args:
        places: where the job's packages are.
        standins_dir: our stand-ins for this torch; the one for cuFFT has the name that torch wants.
    """
    names = [path.name for path in standins_dir.glob("libcufft.so.*")]
    for place in places:
        for name in names:
            # in a package of its own, or since CUDA 13 next to all others
            for found in sorted(place.glob(f"nvidia/*/lib/{name}")):
                return found
    return None
