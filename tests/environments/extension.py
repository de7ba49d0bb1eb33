"""Calls what extensions call, through the stand-ins alone, and prints what came of it.

Run as a program by the tests: it needs neither torch nor memgate. Its argument is a JSON text with
the fields of `Standins`.
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any


def main() -> None:
    """Use managed memory, the driver, and something that is not modelled."""
    paths = json.loads(sys.argv[1])["libraries"]
    libraries = {path.rsplit("/", 1)[1].split(".so")[0]: ctypes.CDLL(path) for path in paths}
    core, runtime = libraries["libmemgate_phantom"], libraries["libmemgate_cudart"]
    driver = ctypes.CDLL("libcuda.so")  # as a program opens it that has no version in mind
    core.memgate_phantom_used_bytes.restype = ctypes.c_size_t
    core.memgate_phantom_unmodelled.restype = ctypes.c_char_p
    runtime.cudaGetErrorString.restype = ctypes.c_char_p
    said: dict[str, Any] = {}

    managed = ctypes.POINTER(ctypes.c_int)()
    assert runtime.cudaMallocManaged(ctypes.byref(managed), ctypes.c_size_t(1 << 40), 1) == 0
    managed[0] = managed[1 << 30] = 7
    assert runtime.cudaMemPrefetchAsync(managed, ctypes.c_size_t(1 << 20), 0, None) == 0
    said["managed"] = [managed[0], managed[1 << 30]]
    assert runtime.cudaFree(managed) == 0

    address = ctypes.c_uint64()
    assert driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(4 << 20)) == 0
    used = [core.memgate_phantom_used_bytes()]
    back = ctypes.create_string_buffer(32)
    text = ctypes.create_string_buffer(b"abcd" * 8, 32)
    assert driver.cuMemcpyHtoD_v2(address, text, ctypes.c_size_t(32)) == 0
    assert driver.cuMemcpyDtoH_v2(back, address, ctypes.c_size_t(32)) == 0
    said["copied"] = back.raw[:4].decode()
    assert driver.cuMemFree_v2(address) == 0
    said["used_bytes"] = [*used, core.memgate_phantom_used_bytes()]

    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    assert driver.cuModuleLoadData(ctypes.byref(module), b"code") == 0
    assert driver.cuModuleGetFunction(ctypes.byref(function), module, b"kernel") == 0
    assert driver.cuLaunchKernelEx(None, function, None, None) == 0
    said["launches"] = core.memgate_phantom_launches()
    count = ctypes.c_int()
    assert driver.cuDeviceGetCount(ctypes.byref(count)) == 0
    said["by_other_name"] = count.value

    status = runtime.cudaGraphInstantiate(None, None, 0)
    said["refused"] = core.memgate_phantom_unmodelled().decode().split()
    said["error"] = runtime.cudaGetErrorString(status).decode()
    sys.stdout.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    main()
