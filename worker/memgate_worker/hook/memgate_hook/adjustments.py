"""What is changed in torch for a job that runs on the phantom, each with its reason."""

from __future__ import annotations

import functools
from typing import Any, Callable

import torch
from torch import nn

from .blank import blank
from .compiling import is_tracing

#: fills of at least this many elements are weights, whose values never matter
_WEIGHT_ELEMENTS = 4096


def take_flash_attention() -> None:
    """cuDNN's attention needs a driver to choose its engine; flash attention is the alternative."""
    if hasattr(torch.backends.cuda, "enable_cudnn_sdp"):  # since 2.4
        torch.backends.cuda.enable_cudnn_sdp(False)


def show_all_devices(count: int) -> None:
    """Let ``CUDA_VISIBLE_DEVICES`` hide nothing: it names GPUs of another machine."""
    torch.cuda._parse_visible_devices = lambda: list(range(count))


def leave_weights_unfilled() -> None:
    """Blank large tensors on the CPU instead of filling them: their pages are never touched."""
    for name in ("normal_", "uniform_"):
        setattr(torch.Tensor, name, _unless_large(getattr(torch.Tensor, name)))
    nn.init.trunc_normal_ = _unless_large(_without_end(nn.init.trunc_normal_))


def _without_end(fill: Any) -> Any:
    """Draw numbers on the GPU a second time and no more: torch 2.14 goes on until all are small.

    Nothing is drawn here, so that numbers which are made up never are. From the third time on, it
    takes no more memory than it did before.
    """

    def fill_twice(
        tensor: torch.Tensor, mean: float = 0.0, std: float = 1.0, *args: Any, **kwargs: Any
    ) -> Any:
        if tensor.device.type != "cuda":
            return fill(tensor, mean, std, *args, **kwargs)
        with torch.no_grad():
            result = tensor.normal_(mean, std)
            for _ in range(2):
                mask = (result < mean - std) | (result > mean + std)
                again = torch.empty_like(result).normal_(mean, std)
                result = torch.where(mask, again, result)
            return tensor.copy_(result)

    draws = getattr(nn.init, "_no_grad_trunc_normal_", None)
    return fill_twice if draws and "where" in draws.__code__.co_names else fill


def _unless_large(fill: Any) -> Any:
    def fill_unless_large(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        is_large = tensor.device.type == "cpu" and tensor.numel() >= _WEIGHT_ELEMENTS
        if is_large and not is_tracing():
            return blank(tensor)
        return fill(tensor, *args, **kwargs)

    return fill_unless_large


def read_large_numbers() -> None:
    """Have numbers of 2^63 and more (``uint64``) read back as their bits.

    What observes operators cannot hold them.
    """
    unsigned = getattr(torch, "uint64", None)  # since 2.3
    if unsigned is None:
        return
    for name in ("item", "__int__", "__index__"):
        setattr(torch.Tensor, name, _by_its_bits(getattr(torch.Tensor, name), unsigned))


def _by_its_bits(read: Any, unsigned: Any) -> Any:
    @functools.wraps(read)
    def read_bits(self: torch.Tensor) -> Any:
        if self.dtype is not unsigned:
            return read(self)
        return read(self.view(torch.int64)) % (1 << 64)

    return read_bits


def run_eagerly(note: Callable[[], None]) -> None:
    """Compile nothing, as ``--ignore-compile`` asks; ``note`` is called where a job would have.

    A compiled model allocates differently, so the answer is another job's.
    """

    def compile(model: Any = None, **_: Any) -> Any:
        if model is None:
            return compile
        note()
        if isinstance(model, nn.Module):
            # What a job looks for in a compiled module; as a plain attribute, it is no submodule.
            object.__setattr__(model, "_orig_mod", model)
        return model

    torch.compile = compile
    nn.Module.compile = lambda module, *_, **__: note()


def show_the_memory_of_the_gpu(total_bytes: int) -> None:
    """Let the device's properties say the same as ``torch.cuda.mem_get_info``.

    The device itself has ample memory; otherwise a job that does not fit could not run to its end.
    """
    get_properties = torch.cuda.get_device_properties

    def get_device_properties(*args: Any, **kwargs: Any) -> Any:
        return _Properties(get_properties(*args, **kwargs), total_bytes)

    torch.cuda.get_device_properties = get_device_properties


class _Properties:
    def __init__(self, properties: Any, total_bytes: int) -> None:
        self._properties = properties
        self.total_memory = total_bytes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._properties, name)


def note_fractions(note: Callable[[float], None]) -> None:
    """Note limits that the job sets; they apply on any GPU that it is judged for."""

    def set_per_process_memory_fraction(fraction: float, device: Any = None) -> None:
        del device
        if not torch.cuda.is_initialized():
            torch.cuda.init()
        note(fraction)

    torch.cuda.set_per_process_memory_fraction = set_per_process_memory_fraction
    torch.cuda.memory.set_per_process_memory_fraction = set_per_process_memory_fraction


def note_resets(note: Callable[[], None]) -> None:
    """Have ``note`` called before the job resets the peaks that our self-check compares."""
    for name in ("reset_peak_memory_stats", "reset_max_memory_allocated"):
        reset = getattr(torch.cuda, name)

        def noted_reset(*args: Any, _reset: Any = reset, **kwargs: Any) -> Any:
            note()
            return _reset(*args, **kwargs)

        setattr(torch.cuda, name, noted_reset)
        setattr(torch.cuda.memory, name, noted_reset)


def note_pools(note: Callable[[], None], note_special: Callable[[], None]) -> None:
    """Have ``note`` called when the job allocates from a private pool of its own.

    ``note_special`` is called for pools with an allocator of their own, or rules of their own:
    those that lend memory to others, and those that never split a segment.
    """
    for module in (torch._C, torch.cuda.memory):
        for name in ("_cuda_beginAllocateToPool", "_cuda_beginAllocateCurrentThreadToPool"):
            if hasattr(module, name):
                setattr(module, name, _after(note, getattr(module, name)))
    pool = getattr(torch.cuda, "MemPool", None)  # since 2.5
    if pool is None:
        return
    make = pool.__init__

    def noted_make(self: Any, *args: Any, **kwargs: Any) -> None:
        if any((*args, *kwargs.values())):
            note_special()
        make(self, *args, **kwargs)

    pool.__init__ = noted_make


def _after(note: Callable[[], None], function: Any) -> Any:
    def noted(*args: Any, **kwargs: Any) -> Any:
        note()
        return function(*args, **kwargs)

    return noted
