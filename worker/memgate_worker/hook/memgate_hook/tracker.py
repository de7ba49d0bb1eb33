"""The real allocator's events as rows, and the position of the next one.

The other half is ``native/tracker.cpp`` of the phantom engine.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

#: of a row: action, address, size and stream, eight bytes each
ROW_BYTES = 32


class Tracker:
    """Listens to the real allocator from the moment CUDA is used."""

    def __init__(self, library_dir: Path) -> None:
        """Load the library, without touching CUDA; torch must have been imported."""
        self._native = ctypes.CDLL(str(library_dir / "libmemgate_tracker.so"))
        for name in ("position", "take_peak", "most_bytes"):
            getattr(self._native, f"memgate_tracker_{name}").restype = ctypes.c_int64
        self._native.memgate_tracker_copy_rows.argtypes = [ctypes.c_void_p, ctypes.c_int64]
        #: limits that the program set, each at a position; they make no row
        self.fractions: list[tuple[int, float]] = []

    @property
    def knows_pools(self) -> bool:
        """Rows tell private pools apart; older versions of torch do not say."""
        return bool(self._native.memgate_tracker_knows_pools())

    @property
    def own_device(self) -> int:
        """The device that this process works on: the one where it has had most."""
        return int(self._native.memgate_tracker_own_device())

    def most_bytes(self, device: int) -> int:
        """Return the most bytes that were ever allocated at once on a device."""
        return int(self._native.memgate_tracker_most_bytes(device))

    def attach(self) -> None:
        """Begin; ``torch.cuda.init()`` must have been called."""
        self._native.memgate_tracker_attach()

    def note_fraction(self, fraction: float) -> None:
        """Note ``torch.cuda.set_per_process_memory_fraction``."""
        self.fractions.append((self.position(), fraction))

    @property
    def position_function(self) -> Any:
        """The native function behind ``position``, for native code to call."""
        return self._native.memgate_tracker_position

    def position(self) -> int:
        """Return how many rows there are: the position the next one will have."""
        return int(self._native.memgate_tracker_position())

    def take_peak(self) -> int:
        """Return the most bytes that its device had allocated at once since the last call."""
        return int(self._native.memgate_tracker_take_peak())

    def rows(self) -> bytes:
        """Return all rows so far."""
        count = self.position()
        rows = ctypes.create_string_buffer(count * ROW_BYTES)
        self._native.memgate_tracker_copy_rows(rows, count)
        return rows.raw
