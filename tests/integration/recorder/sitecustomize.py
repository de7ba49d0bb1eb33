"""Records which functions of ours a process enters, and when; imported by Python at its start.

On the path of every process of a test (``PYTHONPATH``), and active only with ``RECORDED_CALLS``
set: a folder that gets a file of lines ``when<TAB>thread<TAB>file<TAB>function`` for each process.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

_PACKAGES = ("/memgate/", "/memgate_service/", "/memgate_worker/")


def _record_calls(folder: Path) -> None:
    lines = (folder / f"{os.getpid()}.tsv").open("a", buffering=1)

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not any(package in code.co_filename for package in _PACKAGES):
            return
        if code.co_name.startswith("<"):  # a module that is imported, a comprehension
            return
        thread = threading.current_thread().name
        lines.write(f"{time.monotonic()}\t{thread}\t{code.co_filename}\t{code.co_qualname}\n")

    threading.setprofile(note)
    sys.setprofile(note)


if "RECORDED_CALLS" in os.environ:
    _record_calls(Path(os.environ["RECORDED_CALLS"]))
