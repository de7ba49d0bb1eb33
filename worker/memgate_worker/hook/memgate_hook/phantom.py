"""Loads the stub libraries into this process, describes the phantom device and reads its counters.

Turns a directory made by `standins.build` into a `Phantom`. Must run before `import torch`: the
dynamic loader looks for an already loaded library of the same name before it searches any path, so
torch then finds ours, whatever is installed and without LD_LIBRARY_PATH.

It does not import torch and does not touch CUDA, so a process that has loaded the stubs and
imported torch may fork children that each describe and use their own device.
"""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import Any, NamedTuple

from .marks import TensorMark
from .tracker import Tracker

#: the device that all of the libraries share
CORE_NAME = "libmemgate_phantom.so"

_MARK = struct.Struct("=qq")
_POSSIBLE = struct.Struct("=qqq")

#: kinds of work areas, in the order of `native/work_areas.h`
_WORK_AREAS = ("fft_asked", "fft_assumed", "linalg_assumed")


#: of contents; see ``native/contents.h``
_KNOWN = 2


class PhantomCounters(NamedTuple):
    """What happened on the device of this process so far."""

    used_bytes: int
    """Currently handed out by cudaMalloc and cuMemCreate, without the context."""
    peak_bytes: int
    """Of the device that was asked for."""
    num_launches: int
    num_data_sized_results: int
    """Results whose size depends on data that is not known (nonzero, unique, boolean masks)."""
    num_communicators: int
    """Of NCCL; what it takes for itself is not counted."""
    unmodelled: tuple[str, ...]
    """Calls that were refused, in order."""


class Phantom:
    """The phantom device of this process."""

    def __init__(
        self, library_dir: Path, cudnn_dir: Path | None = None, cufft: Path | None = None
    ) -> None:
        """Load every stub library of `library_dir`, and NVIDIA's own next to them.

        Args:
            library_dir: where the stubs are.
            cudnn_dir: where the real cuDNN is, if it is to be asked for plans.
            cufft: the real cuFFT's library, if there is one. If it does not say how large its work
                areas are, they are assumed, and that is told.

        Raises:
            OSError: a library cannot be loaded.
        """
        # Lets torch.cuda.is_available() ask NVML. The other way of asking counts as using CUDA, and
        # then torch refuses to work in a forked child; many libraries ask while being imported.
        os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
        self.library_dir = library_dir
        self._core = ctypes.CDLL(str(library_dir / CORE_NAME))
        for path in (*sorted(library_dir.glob("lib*.so.*")), *library_dir.glob("aliases/lib*")):
            ctypes.CDLL(str(path))
        for name in ("used_bytes", "peak_bytes", "shown_bytes"):
            self._function(name).restype = ctypes.c_size_t
        self._function("reads_from_other_ranks").restype = ctypes.c_ulonglong
        self._function("num_workspaces").restype = ctypes.c_int64
        self._function("workspaces").restype = ctypes.c_void_p
        self._function("num_possible_workspaces").restype = ctypes.c_int64
        self._function("possible_workspaces").restype = ctypes.c_void_p
        for name in ("launches", "data_sized_results"):
            self._function(name).restype = ctypes.c_ulonglong
        self._function("unmodelled").restype = ctypes.c_char_p
        self._function("open_cudnn").restype = ctypes.c_char_p
        if cudnn_dir is not None:
            problem: bytes = self._function("open_cudnn")(str(cudnn_dir).encode())
            if problem:
                raise OSError(f"the real cuDNN cannot be used: {problem.decode()}")
        self._function("work_area").restype = ctypes.c_int64
        self._function("cufft_bytes").restype = ctypes.c_ulonglong
        if cufft is not None:
            self._function("open_cufft")(str(cufft).encode())

    def watch_workspaces(self, tracker: Tracker) -> None:
        """From now on, note which memory cuDNN is lent."""
        self._function("watch_workspaces")(tracker.position_function)

    def workspaces(self) -> list[TensorMark]:
        """Return what cuDNN was lent so far, one mark for each use."""
        count = int(self._function("num_workspaces")())
        if not count:
            return []
        data = ctypes.string_at(self._function("workspaces")(), count * _MARK.size)
        return [
            TensorMark(position, address, "workspace", "")
            for position, address in _MARK.iter_unpack(data)
        ]

    def possible_workspaces(self) -> list[tuple[int, int, int]]:
        """Return what cuDNN may have wanted where it cannot be asked.

        Each is the position, the bytes of a copy of all operands, and 1 in a forward pass.
        """
        count = int(self._function("num_possible_workspaces")())
        if not count:
            return []
        data = ctypes.string_at(self._function("possible_workspaces")(), count * _POSSIBLE.size)
        return list(_POSSIBLE.iter_unpack(data))

    @property
    def is_cudnn_lost(self) -> bool:
        """The real cuDNN has crashed, and was not asked again."""
        return bool(self._function("is_cudnn_lost")())

    def work_areas(self) -> dict[str, int]:
        """Return the bytes of the largest work area of each kind that there was."""
        largest = {
            name: int(self._function("work_area")(kind)) for kind, name in enumerate(_WORK_AREAS)
        }
        found = {name: size for name, size in largest.items() if size >= 0}
        if "fft_asked" in found:
            found["cufft_itself"] = int(self._function("cufft_bytes")())
        return found

    @property
    def num_devices(self) -> int:
        """How many devices torch sees."""
        return int(self._function("devices")())

    @property
    def shown_bytes(self) -> int:
        """How much memory a program is told that a device has."""
        return int(self._function("shown_bytes")())

    def used_devices(self) -> list[int]:
        """Return the devices that have a context."""
        is_touched = self._function("is_touched")
        return [device for device in range(self.num_devices) if is_touched(device)]

    @property
    def num_reads_from_other_ranks(self) -> int:
        """How often was looked at what other ranks would have said."""
        return int(self._function("reads_from_other_ranks")())

    def is_known(self, address: int, size_bytes: int) -> bool:
        """Tell whether a GPU would have there what is read, and nothing of it is made up."""
        certainty = self._function("certainty")(
            ctypes.c_uint64(address), ctypes.c_size_t(size_bytes)
        )
        return bool(certainty == _KNOWN)

    def note_from_other_ranks(self, address: int, size_bytes: int) -> None:
        """Say that another rank would have said what is there."""
        self._function("note_from_other_ranks")(
            ctypes.c_uint64(address), ctypes.c_size_t(size_bytes)
        )

    def expect_split(self, num_ranks: int) -> None:
        """Say how many ranks the next communicator has that is split off another one."""
        self._function("expect_split")(num_ranks)

    def communicator(self, number: int, count: int) -> list[int]:
        """Return the first numbers on record of one; see ``native/communicators.cpp``."""
        numbers = (ctypes.c_int64 * count)()
        self._function("communicator")(number, numbers)
        return list(numbers)

    def counters(self, device: int = 0) -> PhantomCounters:
        """Read all counters."""
        refused: bytes = self._function("unmodelled")()
        return PhantomCounters(
            used_bytes=self._function("used_bytes")(),
            peak_bytes=self._function("peak_bytes")(device),
            num_launches=self._function("launches")(),
            num_data_sized_results=self._function("data_sized_results")(),
            num_communicators=self._function("communicators")(),
            unmodelled=tuple(refused.decode().split("\n")) if refused else (),
        )

    def _function(self, name: str) -> Any:
        # ctypes makes a function on first access and keeps it, with the types set on it.
        return getattr(self._core, f"memgate_phantom_{name}")
