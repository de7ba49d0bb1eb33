"""A job on a node -> the most that it had of a GPU, between Slurm's prolog and its epilog.

Two ways: the driver's accounting of processes, which is exact and needs no program; where a GPU
lacks that, a program that looks every second. What was begun is in files, one for each job, so the
prolog, the epilog and that program share nothing else.

Not measured, rather than wrongly: GPUs that jobs share, and nodes where MIG is on (Slurm's numbers
are then not the driver's).
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from memgate_service.admission.slurm.measuring.nvml import NvmlDevice, NvmlError

#: a process may start a little before the prolog's clock says so
_SLACK_US = 1_000_000


class Begun(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What the prolog leaves for the epilog."""

    job: int
    at_us: int
    """When, in microseconds since 1970."""
    gpus: list[int]
    """Their minor numbers."""
    before_bytes: dict[int, int] = {}
    """What was in use before, of GPUs that a program looks at; of others the driver keeps count."""
    problem: str = ""
    """Why nothing is measured."""


class SeenPeak(msgspec.Struct, frozen=True, kw_only=True):
    """What the program that looks has seen."""

    peak_bytes: int
    """The most that one GPU had in use, beyond what it had before."""
    num_looks: int


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What a job took."""

    peak_bytes: int = 0
    """Of its largest GPU; 0 if that was not measured."""
    num_looks: int = 0
    """How often a program has looked; 0 if the figure is the driver's own."""
    problem: str = ""
    """Why it was not measured."""


class Places:
    """Where the files about a job are."""

    def __init__(self, directory: Path, job: int) -> None:
        self.directory = directory
        self.begun = directory / f"{job}.json"
        self.seen = directory / f"{job}.seen"
        self.shared = directory / f"{job}.shared"

    def read(self) -> Begun | None:
        """Return what the prolog has left; None if there is nothing."""
        try:
            return msgspec.json.decode(self.begun.read_bytes(), type=Begun)
        except (OSError, msgspec.MsgspecError):
            return None

    def remove(self) -> None:
        """Forget the job; the program that looks ends when it sees that."""
        for path in (self.begun, self.seen, self.shared):
            path.unlink(missing_ok=True)


def write(path: Path, document: msgspec.Struct) -> None:
    """Write a file, so that whoever reads it never sees half of it."""
    fresh = path.with_name(path.name + ".new")
    fresh.write_bytes(msgspec.json.encode(document))
    fresh.replace(path)


def read_gpus(variables: Mapping[str, str]) -> list[int]:
    """Return the numbers of a job's GPUs on this node."""
    return [int(number) for number in re.findall(r"\d+", variables.get("SLURM_JOB_GPUS", ""))]


def begin(
    places: Places, job: int, gpus: list[int], devices: Mapping[int, NvmlDevice], problem: str = ""
) -> Begun:
    """Prepare the measuring of a job; if GPUs have to be looked at, the caller starts ``watch``."""
    _mark_shared(places, job, gpus)
    problem = problem or _find_problem(gpus, devices)
    before: dict[int, int] = {}
    try:
        if not problem:
            for gpu in gpus:
                if not _is_counted(devices[gpu]):
                    before[gpu] = devices[gpu].used_bytes
    except NvmlError as error:
        problem = str(error)
    at_us = int(time.time() * 1e6)
    begun = Begun(job=job, at_us=at_us, gpus=gpus, before_bytes=before, problem=problem)
    write(places.begun, begun)
    return begun


def _find_problem(gpus: list[int], devices: Mapping[int, NvmlDevice]) -> str:
    if any(device.is_divided for device in devices.values()):
        return "MIG is on"
    missing = [str(gpu) for gpu in gpus if gpu not in devices]
    return f"the driver has no GPU {', '.join(missing)}" if missing else ""


def _is_counted(device: NvmlDevice) -> bool:
    try:
        device.count_processes()
    except NvmlError:
        return False
    return True


def _mark_shared(places: Places, job: int, gpus: list[int]) -> None:
    """Note, for both, that another job has one of the same GPUs: a figure would be of both."""
    for path in places.directory.glob("*.json"):
        other = Places(places.directory, int(path.stem)) if path.stem.isdigit() else None
        begun = other.read() if other else None
        if other and begun and begun.job != job and set(begun.gpus) & set(gpus):
            other.shared.touch()
            places.shared.touch()


def watch(
    places: Places,
    devices: Mapping[int, NvmlDevice],
    pause: Callable[[float], None] = time.sleep,
    every_seconds: float = 1.0,
) -> None:
    """Look at GPUs until the epilog has been there."""
    peak = num_looks = 0
    while (begun := places.read()) is not None:
        used = [devices[gpu].used_bytes - was for gpu, was in begun.before_bytes.items()]
        peak, num_looks = max(peak, *used), num_looks + 1
        write(places.seen, SeenPeak(peak_bytes=peak, num_looks=num_looks))
        pause(every_seconds)
    places.seen.unlink(missing_ok=True)


def end(places: Places, devices: Mapping[int, NvmlDevice], problem: str = "") -> Measured:
    """Return what a job took, and forget it."""
    begun, is_shared = places.read(), places.shared.exists()
    try:
        if begun is None:
            return Measured(problem="nothing was noted when it began: is the prolog set up?")
        problem = begun.problem or problem
        if is_shared:
            problem = "it shared a GPU with another job"
        return Measured(problem=problem) if problem else _measure(places, begun, devices)
    except NvmlError as error:
        return Measured(problem=str(error))
    finally:
        places.remove()


def _measure(places: Places, begun: Begun, devices: Mapping[int, NvmlDevice]) -> Measured:
    peak = num_looks = 0
    for gpu in begun.gpus:
        if gpu in begun.before_bytes or gpu not in devices:
            continue
        own = [one for one in devices[gpu].processes() if one.started_us > begun.at_us - _SLACK_US]
        peak = max([peak, *(one.max_bytes for one in own)])
    if begun.before_bytes and places.seen.exists():
        seen = msgspec.json.decode(places.seen.read_bytes(), type=SeenPeak)
        peak, num_looks = max(peak, seen.peak_bytes), seen.num_looks
    problem = "" if peak else "no process used its GPUs, as far as the driver knows"
    return Measured(peak_bytes=peak, num_looks=num_looks, problem=problem)


def make_directory(path: Path) -> Path:
    """Make the directory of these files, for root alone."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_uid != os.geteuid():
        raise NvmlError(f"{path} belongs to somebody else")
    return path
