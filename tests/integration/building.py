"""Builds models and optimizers inside a runtime, as a job does, and says what became of each.

Run by a runtime's own Python: a request a line on standard input, an answer a line on standard
output. It also says what was opened meanwhile, as Python itself reports it.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from memgate.jobspec import ModelSpec
    from memgate_worker.runtimes.runtime import Runtime


class Built(NamedTuple):
    """What became of a request."""

    parameters: int | None
    dtype: str | None
    message: str
    fault: str | None
    near: tuple[str, ...]
    #: files outside the runtime, and sockets
    opened: tuple[str, ...]

    @property
    def is_right(self) -> bool:
        """There was nothing to complain of."""
        return self.fault is None


class Builder:
    """A process of a runtime that builds; a context manager."""

    def __init__(self, runtime: Runtime) -> None:
        from memgate_worker.engines.host_client import host_environment, package_dirs

        places = os.pathsep.join(map(str, (*(one.parent for one in package_dirs()), runtime.own)))
        self._process = subprocess.Popen(
            [runtime.python, "-P", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=host_environment(runtime) | {"PYTHONPATH": places},
        )

    def __enter__(self) -> Builder:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()

    def ask(self, **request: Any) -> Built:
        """Build a ``model``, a ``config`` of a ``class``, an ``optimizer``; or ``count`` a model's
        parameters."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        said = json.loads(self._process.stdout.readline())
        return Built(
            **said | {"near": tuple(said["near"]), "opened": tuple(map(str, said["opened"]))}
        )

    def build(self, source: str, name: str, given: dict[str, Any] | None = None) -> Built:
        """Build a model: of transformers, by its class."""
        if source == "transformers":
            model = {"source": source, "class": name, "config": given or {}}
        else:
            model = {"source": source, "name": name, "kwargs": given or {}}
        return self.ask(model=model)


class _Opened:
    """Hears of everything that Python opens, after the seal has let it pass."""

    def __init__(self) -> None:
        self.found: list[str] = []
        own = (sys.prefix, sys.base_prefix, *filter(None, sys.path), "/proc", "/sys", "/dev/null")
        self._own = tuple(os.path.realpath(one) for one in own)

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event.startswith("socket."):
            self.found.append(event)
        elif event == "open" and isinstance(arguments[0], str | bytes):
            path = os.path.realpath(os.fsdecode(arguments[0]))
            if not path.startswith(self._own):
                self.found.append(path)


def _build(request: dict[str, Any]) -> dict[str, Any]:
    from torch import nn

    from memgate.jobspec import ModelSpec, OptimizerSpec
    from memgate_worker.jobs.classes import find_class
    from memgate_worker.jobs.configs import make_config
    from memgate_worker.jobs.models import build_model
    from memgate_worker.jobs.optimizers import make_optimizers

    if "optimizer" in request:
        make_optimizers(OptimizerSpec.model_validate(request["optimizer"]), nn.Linear(4, 4))
        return {}
    if "config" in request:
        make_config(find_class(request["class"]), request["config"])
        return {}
    if "count" in request:
        return {"parameters": _count(ModelSpec.model_validate(request["count"]))}
    built = build_model(ModelSpec.model_validate(request["model"]))
    first = next(built.parameters())
    return {"parameters": sum(one.numel() for one in built.parameters()), "dtype": str(first.dtype)}


def _count(spec: ModelSpec) -> int:
    """Count the parameters of a model on no device, however large it is."""
    import torch
    from transformers import MODEL_MAPPING

    from memgate_worker.jobs.classes import find_class
    from memgate_worker.jobs.configs import build_transformers, find_config, make_config
    from memgate_worker.jobs.diffusion import build_diffusers
    from memgate_worker.jobs.models import build_model

    if spec.source == "diffusers":
        with torch.device("meta"):
            return sum(one.numel() for one in build_diffusers(spec).parameters())
    class_name, settings = find_config(spec)
    config = make_config(find_class(class_name), settings)
    for part in vars(config).values():  # some modules compute when they are imported
        if type(part) in MODEL_MAPPING:
            MODEL_MAPPING[type(part)]
    try:
        with torch.device("meta"):
            built = build_transformers(spec)
    except (NotImplementedError, RuntimeError):  # older ones compute with values; those are small
        built = build_model(spec)
    return sum(one.numel() for one in built.parameters())


def _answer(request: dict[str, Any], opened: _Opened) -> dict[str, Any]:
    from memgate.errors import MemgateError

    said: dict[str, Any] = {"parameters": None, "dtype": None, "message": "", "fault": None}
    opened.found.clear()
    try:
        said |= {"near": ()} | _build(request)
    except MemgateError as error:
        near = error.mistakes[0].near if error.mistakes else ()
        said |= {"message": error.message, "fault": error.fault, "near": near}
    except Exception as error:  # such as an optimizer that takes other parameters
        said |= {"message": repr(error), "fault": "raised", "near": ()}
    return said | {"opened": list(opened.found)}


def main() -> None:
    """Serve standard input."""
    import timm
    import torchvision
    import transformers

    from memgate_worker.jobs.seal import sealed

    del timm, torchvision
    warnings.simplefilter("ignore")
    logging.disable()
    transformers.logging.set_verbosity_error()
    with sealed():
        pass
    opened = _Opened()
    sys.addaudithook(opened)  # after the seal's own: what that refuses does not come here
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        print(json.dumps(_answer(json.loads(line), opened)), file=answers, flush=True)


if __name__ == "__main__":
    main()
