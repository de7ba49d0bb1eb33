"""``--curve FILE``: the memory curve as data, CSV or JSON by the file's name."""

from __future__ import annotations

import csv
import json
from pathlib import Path

from memgate.allocator.config import AllocatorConfig
from memgate.curves import Curve, make_curve
from memgate.errors import InputError
from memgate.gpus import GpuTarget
from memgate.timeline import Timeline
from memgate_service.cli.plots import replay_to_show

_KINDS = (".csv", ".json")


def prepare_curve(path: Path) -> Path:
    """Make sure that a curve can be written before time is spent on what is in it.

    Raises:
        InputError: if the file is there already, or there is no such folder or kind of file.
    """
    if path.suffix.lower() not in _KINDS:
        raise InputError(f"--curve {path}: the name must end in {' or '.join(_KINDS)}")
    if not path.resolve().parent.is_dir():
        raise InputError(f"--curve {path}: there is no such folder")
    if path.exists():
        raise _is_there(path)
    return path


def write_timeline_curve(
    timeline: Timeline, config: AllocatorConfig, target: GpuTarget, *, path: Path
) -> None:
    """Write the curve of a job on a GPU: the one that ``--plot`` draws.

    Raises:
        InputError: if the file cannot be written.
    """
    run, _ = replay_to_show(timeline, config, target)
    write_curve(make_curve(timeline, run), path)


def write_curve(curve: Curve, path: Path) -> None:
    """Write a curve into a new file.

    Raises:
        InputError: if the file is there already, or cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8", newline="") as file:
            if path.suffix.lower() == ".json":
                json.dump({name: list(column) for name, column in curve.items()}, file)
                return
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(curve)
            writer.writerows(zip(*curve.values(), strict=True))
    except FileExistsError:
        raise _is_there(path) from None
    except OSError as error:
        raise InputError(f"--curve {path}: {error.strerror or error}") from None


def _is_there(path: Path) -> InputError:
    return InputError(f"--curve {path}: the file exists; remove it, or give another name")
