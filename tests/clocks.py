"""A clock of a test's own for programs that it starts: moved while they run, the machine's is not.

By libfaketime (``make parts``). Durations are measured by another clock, which stays as it is.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parts import find_faketime


class Clock:
    """What programs with its environment take for the time."""

    def __init__(self, home: Path) -> None:
        library = find_faketime()
        if library is None:
            pytest.skip("there is no libfaketime here: make parts")
        self._file = home / "clock"
        self.environment = {
            "LD_PRELOAD": str(library),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        self.move(0)

    def move(self, days: int) -> None:
        """Move it so many days from the machine's, all at once."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{days:+d}d\n")
        new.replace(self._file)  # it is read all the time
