"""The stack of an event -> which part of a training program was at work, as far as it shows.

Stacks have frames of Python, of C++, or of both, the innermost first. Only frames of PyTorch itself
count: names in a program of somebody else's mean what they like. What no frame tells is unknown;
the backward pass runs in a thread without Python, so it shows in frames of C++ only.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

#: frames that are looked at: deeper stacks are those of recursion
_MAX_FRAMES = 1000


class Origin(StrEnum):
    """A part of a program."""

    #: a model is built, or moved to the device
    MODEL = "model"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    #: a library takes memory for itself
    WORKSPACE = "workspace"
    #: ``torch.cuda.empty_cache()``
    EMPTY_CACHE = "empty_cache"
    UNKNOWN = "unknown"


#: parts of the names of functions in C++
_IN_CPP = {
    "emptyCache": Origin.EMPTY_CACHE,
    "getNewWorkspace": Origin.WORKSPACE,
    "getCUDABlasLtWorkspace": Origin.WORKSPACE,
    "getCurrentCUDABlasHandle": Origin.WORKSPACE,
    "autograd::Engine::": Origin.BACKWARD,
}

#: functions in Python, with the end of the file's path
_IN_PYTHON = {
    "empty_cache": (("torch/cuda/memory.py", "torch/accelerator/memory.py"), Origin.EMPTY_CACHE),
    "_engine_run_backward": (("torch/autograd/graph.py",), Origin.BACKWARD),
    "_call_impl": (("torch/nn/modules/module.py",), Origin.FORWARD),
    "_apply": (("torch/nn/modules/module.py",), Origin.MODEL),
}

_MODULES = "/torch/nn/modules/"
_OPTIMIZERS = "/torch/optim/"


def find_origin(frames: list[Any]) -> Origin:
    """Return what the innermost frame that tells something tells."""
    for frame in frames[:_MAX_FRAMES]:
        if isinstance(frame, dict):
            name, path = frame.get("name"), frame.get("filename")
            if isinstance(name, str) and isinstance(path, str):
                origin = _find_in_frame(name, path.replace("\\", "/"))
                if origin is not Origin.UNKNOWN:
                    return origin
    return Origin.UNKNOWN


def _find_in_frame(name: str, path: str) -> Origin:
    if path.endswith(".py"):
        paths, origin = _IN_PYTHON.get(name, ((), Origin.UNKNOWN))
        if path.endswith(tuple(paths)):
            return origin
        if _OPTIMIZERS in path:
            return Origin.OPTIMIZER
        return Origin.MODEL if name == "__init__" and _MODULES in path else Origin.UNKNOWN
    return next((origin for part, origin in _IN_CPP.items() if part in name), Origin.UNKNOWN)
