"""NVML, the library of NVIDIA's driver, as far as memory is concerned; by ctypes.

The driver keeps the largest amount of memory that each process ever had, also of processes that
have ended, once its accounting mode is on: no program of ours has to run beside the job.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_LIBRARY = "libnvidia-ml.so.1"

_SUCCESS = 0
_ENABLED = 1

#: NVML has this instead of a number of bytes that it does not know
_UNKNOWN_BYTES = (1 << 64) - 1


class NvmlError(Exception):
    """NVML is not there, or cannot do what was asked; the text says which."""


class _AccountingStats(ctypes.Structure):
    _fields_ = (
        ("gpu_utilization", ctypes.c_uint),
        ("memory_utilization", ctypes.c_uint),
        ("max_memory_usage", ctypes.c_ulonglong),
        ("time", ctypes.c_ulonglong),
        ("start_time", ctypes.c_ulonglong),
        ("is_running", ctypes.c_uint),
        ("reserved", ctypes.c_uint * 5),
    )


class _Memory(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_ulonglong) for name in ("total", "free", "used"))


@dataclass(frozen=True, slots=True)
class Process:
    """A process that used a GPU, or still does."""

    pid: int
    started_us: int
    max_bytes: int


class NvmlDevice:
    """One GPU."""

    def __init__(self, call: Callable[..., None], handle: ctypes.c_void_p) -> None:
        self._call = call
        self._handle = handle

    @property
    def minor(self) -> int:
        """The N of ``/dev/nvidiaN``."""
        number = ctypes.c_uint()
        self._call("nvmlDeviceGetMinorNumber", self._handle, ctypes.byref(number))
        return number.value

    @property
    def is_divided(self) -> bool:
        """MIG is on: jobs get parts of it."""
        now, later = ctypes.c_uint(), ctypes.c_uint()
        try:
            self._call("nvmlDeviceGetMigMode", self._handle, ctypes.byref(now), ctypes.byref(later))
        except NvmlError:  # a GPU, or a driver, that cannot do that
            return False
        return now.value == _ENABLED

    @property
    def used_bytes(self) -> int:
        """What all processes have now, and the driver itself."""
        memory = _Memory()
        self._call("nvmlDeviceGetMemoryInfo", self._handle, ctypes.byref(memory))
        return int(memory.used)

    def count_processes(self) -> None:
        """Turn the accounting mode on; that needs root."""
        mode = ctypes.c_uint()
        self._call("nvmlDeviceGetAccountingMode", self._handle, ctypes.byref(mode))
        if mode.value != _ENABLED:
            self._call("nvmlDeviceSetAccountingMode", self._handle, ctypes.c_uint(_ENABLED))

    def processes(self) -> list[Process]:
        """Return the processes that the driver remembers, with the most that each ever had."""
        size = ctypes.c_uint()
        self._call("nvmlDeviceGetAccountingBufferSize", self._handle, ctypes.byref(size))
        count, pids = ctypes.c_uint(size.value), (ctypes.c_uint * size.value)()
        self._call("nvmlDeviceGetAccountingPids", self._handle, ctypes.byref(count), pids)
        return [*self._read_all(pids[: count.value])]

    def _read_all(self, pids: list[int]) -> Iterator[Process]:
        for pid in pids:
            stats = _AccountingStats()
            try:
                number = ctypes.c_uint(pid)
                name = "nvmlDeviceGetAccountingStats"
                self._call(name, self._handle, number, ctypes.byref(stats))
            except NvmlError:  # forgotten in the meantime
                continue
            if stats.max_memory_usage != _UNKNOWN_BYTES:
                yield Process(pid, int(stats.start_time), int(stats.max_memory_usage))


@contextmanager
def open_nvml(library: str = _LIBRARY) -> Iterator[dict[int, NvmlDevice]]:
    """Return the GPUs of this node by their minor numbers, while the block runs.

    Raises:
        NvmlError: if there is no driver.
    """
    try:
        nvml = ctypes.CDLL(library)
    except OSError:
        raise NvmlError(f"{library} is not there") from None

    def call(name: str, *arguments: object) -> None:
        function = getattr(nvml, name, None)
        status = _SUCCESS if function is None else function(*arguments)
        if function is None or status != _SUCCESS:
            said = "is not in it" if function is None else f"returned {status}"
            raise NvmlError(f"{library}: {name} {said}")

    call("nvmlInit_v2")
    try:
        yield {device.minor: device for device in _devices(call)}
    finally:
        call("nvmlShutdown")


def _devices(call: Callable[..., None]) -> Iterator[NvmlDevice]:
    count = ctypes.c_uint()
    call("nvmlDeviceGetCount_v2", ctypes.byref(count))
    for index in range(count.value):
        handle = ctypes.c_void_p()
        call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        yield NvmlDevice(call, handle)


@contextmanager
def try_nvml() -> Iterator[tuple[dict[int, NvmlDevice], str]]:
    """Return the GPUs of this node, or none and why."""
    try:
        with open_nvml() as devices:
            yield devices, ""
    except NvmlError as error:
        yield {}, str(error)
