"""``-o FILE``: a run, kept as a timeline file."""

from __future__ import annotations

from pathlib import Path

from memgate.errors import InputError
from memgate.timeline_file.recorded import RecordedTimeline
from memgate.timeline_file.writing import write_timeline


def prepare_timeline(path: Path) -> Path:
    """Make sure that a timeline file can be written before time is spent on what is in it.

    Raises:
        InputError: if the file is there already, or there is no such folder.
    """
    if not path.resolve().parent.is_dir():
        raise InputError(f"-o {path}: there is no such folder")
    if path.exists():
        raise _is_there(path)
    return path


def save_timeline(recorded: RecordedTimeline, path: Path) -> None:
    """Write a recording into a new file.

    Raises:
        InputError: if the file is there already, or cannot be written.
    """
    content = write_timeline(recorded)
    try:
        with path.open("xb") as file:
            file.write(content)
    except FileExistsError:
        raise _is_there(path) from None
    except OSError as error:
        raise InputError(f"-o {path}: {error.strerror or error}") from None


def _is_there(path: Path) -> InputError:
    return InputError(f"-o {path}: the file is there already; name a new one, or remove it")
