"""A job spec -> a new file; what is there is never overwritten unasked."""

from __future__ import annotations

from pathlib import Path

from memgate.errors import InputError


def check_new_file(path: Path, *, may_replace: bool = False, instead: str = "") -> None:
    """Make sure that a file can be written, before anything is asked or read.

    Raises:
        InputError: if it is there already, or its folder is not.
    """
    if not path.resolve().parent.is_dir():
        raise InputError(f"-o {path}: there is no such folder")
    if path.exists() and not (may_replace and path.is_file()):
        raise _is_there(path, instead)


def write_new_file(path: Path, text: str, *, may_replace: bool = False, instead: str = "") -> None:
    """Write a file.

    Raises:
        InputError: if it is there already, or cannot be written.
    """
    try:
        with path.open("w" if may_replace else "x") as file:
            file.write(text)
    except FileExistsError:
        raise _is_there(path, instead) from None
    except OSError as error:
        raise InputError(f"-o {path}: {error.strerror or error}") from None


def _is_there(path: Path, instead: str) -> InputError:
    step = instead or "name a new one, or remove it"
    return InputError(f"-o {path}: the file is there already; {step}")
