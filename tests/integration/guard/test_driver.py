"""Programs that look for NVIDIA's driver, and do not find it, are noted."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from memgate_worker.guard.guard import PROBLEMS_NAME
from tests.integration.guard.guarding import PYTHON, Place

LOAD = """
import ctypes
for _ in range(2):
    try: ctypes.CDLL("{name}")
    except OSError: pass
"""


def reports(place: Place) -> list[tuple[str, str]]:
    """Return what was noted."""
    path = place.run_dir / PROBLEMS_NAME
    lines: list[dict[str, Any]] = []
    if path.is_file():
        lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [(line["code"], line["sought"]) for line in lines]


@pytest.mark.parametrize(
    ("name", "want"),
    [
        ("libcuda.so.1", [("DRIVER_SOUGHT", "libcuda.so.1")]),
        ("libcuda.so", [("DRIVER_SOUGHT", "libcuda.so")]),
        ("/usr/lib/wsl/lib/libcuda.so.1", [("DRIVER_SOUGHT", "libcuda.so.1")]),
        ("libnvidia-ml.so.1", [("GPU_LOOKED_FOR", "libnvidia-ml.so.1")]),
        ("libm.so.6", []),
        ("libcudart-of-no-one.so", []),
    ],
)
def test_a_look_for_the_driver_is_noted_once(
    place: Place, name: str, want: list[tuple[str, str]]
) -> None:
    """By its library; NVML can tell of a GPU and take nothing of it."""
    place.python(LOAD.format(name=name))
    assert reports(place) == want


def test_what_is_linked_with_the_driver_is_noted(place: Place) -> None:
    """The loader fails before any code of such a program or module runs, so nothing else would."""
    base = place.directory.parent
    stub = base / "libcuda.so.1"
    for target, options in (
        (stub, ["-shared", "-Wl,-soname,libcuda.so.1"]),
        (base / "module.so", ["-shared", "-Wl,--no-as-needed", str(stub)]),
        (base / "tool", ["-Dcalled=main", "-Wl,--no-as-needed", str(stub)]),
    ):
        subprocess.run(
            ["cc", "-fPIC", "-x", "c", "-", "-x", "none", "-o", str(target), *options],
            input="int called(void) { return 0; }",
            text=True,
            check=True,
        )
    stub.unlink()

    place.run([PYTHON, "-c", LOAD.format(name=base / "module.so")])
    place.run(["/bin/sh", "-c", f"{base}/tool || true"])
    place.run([PYTHON, "-c", f"import subprocess; subprocess.run(['{base}/tool'])"])

    linked = ("DRIVER_LINKED", f"{base}/tool")
    assert reports(place) == [("DRIVER_SOUGHT", "libcuda.so.1"), linked, linked]


@pytest.mark.parametrize(
    ("command", "want"),
    [
        ("[ -e /dev/nvidia0 ]", [("GPU_LOOKED_FOR", "/dev/nvidia0")]),
        ("cat /proc/driver/nvidia/version", [("GPU_LOOKED_FOR", "/proc/driver/nvidia/version")]),
        ("ls /dev > /dev/null; command -v nvcc; command -v nvidia-smi", []),
    ],
)
def test_a_look_at_the_drivers_files_is_noted(
    place: Place, command: str, want: list[tuple[str, str]]
) -> None:
    """They say whether there is a GPU; where programs are does not."""
    place.run(["/bin/bash", "-c", f"{command}; true"])
    assert reports(place) == want
