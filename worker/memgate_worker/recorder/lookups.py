"""Programs that looked for NVIDIA's driver -> those that may use a GPU where there is one.

The guard's library notes every such look (``guard/native/driver.c``). torch finds our stand-ins;
any other program finds nothing, and most go on without a GPU. What it would have taken is not
known.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

#: of a command line, so much is quoted
_NUM_CHARACTERS = 80

#: what the guard calls the three kinds of looks
_LOADED, _LINKED, _LOOKED_AT = "DRIVER_SOUGHT", "DRIVER_LINKED", "GPU_LOOKED_FOR"
LOOKUPS = (_LOADED, _LINKED, _LOOKED_AT)

#: programs that measure GPUs for people, and use none
_MONITORS = {
    *("nvidia-smi", "nvidia-settings", "nvtop", "nvitop", "gpustat", "dcgmi", "btop", "glances"),
    *("gpu_stats", "wandb-core"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lookup:
    """A look for the driver that found nothing."""

    pid: int
    program: str
    #: a library, or a file of the driver's own
    sought: str
    #: what it asked can tell of a GPU, and take no memory of it
    only_looks: bool
    #: the program is known to measure GPUs for people
    is_monitor: bool = False

    @classmethod
    def from_report(cls, report: Mapping[str, Any]) -> Lookup:
        """Read a line of the guard's."""
        command = [*report["command"]] or [report["executable"] or "a program"]
        is_linked = report["code"] == _LINKED
        return cls(
            pid=report["pid"],
            program=report["sought"] if is_linked else shlex.join(command)[:_NUM_CHARACTERS],
            sought="libcuda.so.1, which it is linked with" if is_linked else report["sought"],
            only_looks=report["code"] == _LOOKED_AT,
            is_monitor=any(
                PurePath(word).name in _MONITORS for word in (*command[:2], report["executable"])
            ),
        )


def find_hidden_use(lookups: Iterable[Lookup], seen: Collection[int]) -> list[Lookup]:
    """Return the looks of programs that may have used a GPU, those of one program once.

    Args:
        lookups: that found nothing.
        seen: processes that used the phantom, and those that started them: who only looks whether
            there is a GPU, and uses it or starts what does, has lost nothing by not finding it.
    """
    known: dict[str, Lookup] = {}
    for lookup in lookups:
        if lookup.only_looks and (lookup.is_monitor or lookup.pid in seen):
            continue
        known.setdefault(lookup.program, lookup)
    return [*known.values()]
