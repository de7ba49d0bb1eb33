"""Answers ``nvidia-smi`` in a job for the GPU that is asked about, which is not there.

Runs as a program of its own, with the standard library alone: it is on the job's ``PATH``, in front
of a real one, which would find no GPU. It knows the usual questions: the table, ``-L``, ``-q``,
``--query-gpu`` and ``--query-compute-apps``. Settings (``-pm``, ``-pl``) are accepted and do
nothing. What it does not know of the GPU is ``[N/A]``, as NVIDIA's own program says.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping, Sequence

_NAME, _TOTAL = "MEMGATE_PHANTOM_NAME", "MEMGATE_PHANTOM_SHOWN_BYTES"
_MAJOR, _MINOR = "MEMGATE_PHANTOM_COMPUTE_MAJOR", "MEMGATE_PHANTOM_COMPUTE_MINOR"

#: not a real one: it says whose it is
_UUID = "GPU-00000000-0000-0000-0000-6d656d676174"
_BUS = "00000000:00:00.0"
_DRIVER = "memgate"

_UNKNOWN = "[N/A]"

#: NVIDIA's exit statuses: an argument that is not known, and a GPU that is not there
_BAD_ARGUMENT, _NO_DEVICE = 2, 6

_USAGE = "this nvidia-smi is memgate's, for a GPU that is not there, and does not know {!r}"

_TABLE = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI (memgate: no GPU is there)                                                   |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|=========================================+========================+======================|
|   0  {name:<29.29}   On | {bus:>16}   Off |                  N/A |
| N/A   N/A    P0              N/A /  N/A | {used:>7}MiB / {total:>6}MiB |      0%      Default |
+-----------------------------------------+------------------------+----------------------+

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  No running processes found                                                             |
+-----------------------------------------------------------------------------------------+"""


def answer(arguments: Sequence[str], variables: Mapping[str, str]) -> tuple[str, int]:
    """Return what is printed, and the exit status."""
    options = _read_options(arguments)
    if options.get("id", "0") not in ("0", _UUID, _BUS):
        return "No devices were found", _NO_DEVICE
    known = _describe(variables)
    if "query-gpu" in options:
        return _tell(options["query-gpu"].split(","), known, options.get("format", "")), 0
    if "query-compute-apps" in options:
        is_bare = "noheader" in options.get("format", "")
        return "" if is_bare else options["query-compute-apps"].replace(",", ", "), 0
    if "L" in options or "list-gpus" in options:
        return f"GPU 0: {known['name']} (UUID: {_UUID})", 0
    if "q" in options or "query" in options:
        return "\n".join(f"{name:<40}: {value}" for name, value in known.items()), 0
    if "" in options:
        return _USAGE.format(options[""]), _BAD_ARGUMENT
    if options.keys() & _SETTINGS:
        return "All done.", 0
    total = known["memory.total"].partition(" ")[0]
    return _TABLE.format(name=known["name"], bus=_BUS, used=0, total=total), 0


#: that change something on a real GPU, each with a value
_SETTINGS = {
    *("pm", "persistence-mode", "pl", "power-limit", "c", "compute-mode", "ac", "lgc", "lmc"),
    *("applications-clocks", "lock-gpu-clocks", "lock-memory-clocks", "e", "ecc-config", "mig"),
}

#: other options with a value
_VALUED = {"i", "id", "format", "l", "loop", "lms", "loop-ms", "f", "filename", "d", "display"}
_VALUED |= {"query-gpu", "query-compute-apps"}

#: options without one
_PLAIN = {"L", "list-gpus", "q", "query", "rac", "rgc", "rmc", "s", "h", "help", "x", "u"}

_LONG = {"i": "id", "l": "loop"}


def _read_options(arguments: Sequence[str]) -> dict[str, str]:
    """Return options by name, without dashes; what is not known is under the empty name."""
    options: dict[str, str] = {}
    words = iter(arguments)
    for word in words:
        name, has_value, value = word.lstrip("-").partition("=")
        if not word.startswith("-"):
            options[""] = word
        elif name in _VALUED | _SETTINGS:
            options[_LONG.get(name, name)] = value if has_value else next(words, "")
        elif name in _PLAIN:
            options[name] = ""
        else:
            options[""] = word
    return options


def _describe(variables: Mapping[str, str]) -> dict[str, str]:
    total = f"{int(variables[_TOTAL]) >> 20} MiB"
    return {
        "index": "0",
        "count": "1",
        "name": variables[_NAME],
        "gpu_name": variables[_NAME],
        "uuid": _UUID,
        "gpu_uuid": _UUID,
        "pci.bus_id": _BUS,
        "gpu_bus_id": _BUS,
        "driver_version": _DRIVER,
        "compute_cap": f"{variables[_MAJOR]}.{variables[_MINOR]}",
        "compute_mode": "Default",
        "persistence_mode": "Enabled",
        "pstate": "P0",
        "memory.total": total,
        "memory.reserved": "0 MiB",
        "memory.used": "0 MiB",
        "memory.free": total,
        "utilization.gpu": "0 %",
        "utilization.memory": "0 %",
        "timestamp": time.strftime("%Y/%m/%d %H:%M:%S.000"),
    }


def _tell(fields: Sequence[str], known: Mapping[str, str], style: str) -> str:
    """Return a table with commas: a line of names unless it is not wanted, and the values."""
    names = [field.strip() for field in fields]
    values = [known.get(name, _UNKNOWN) for name in names]
    heads = [f"{name}{_unit_of(value)}" for name, value in zip(names, values, strict=True)]
    if "nounits" in style:
        values = [value.partition(" ")[0] if _unit_of(value) else value for value in values]
    lines = [", ".join(values)]
    return "\n".join(lines if "noheader" in style else [", ".join(heads), *lines])


def _unit_of(value: str) -> str:
    number, _, unit = value.partition(" ")
    return f" [{unit}]" if number.isdigit() and unit in ("MiB", "%") else ""


def main() -> None:
    """Answer; with a loop, again and again."""
    options = _read_options(sys.argv[1:])
    while True:
        said, status = answer(sys.argv[1:], os.environ)
        if said:
            sys.stdout.write(said + "\n")
            sys.stdout.flush()
        if status or not (seconds := options.get("loop")):
            sys.exit(status)
        time.sleep(float(seconds))


if __name__ == "__main__":
    main()
