"""Batches of a job that has no data loader, seen where its own code moves them to the GPU.

Each line that does so stands for a tensor of the batch, or for several in their order. When a line
moves the same one again, the batch before was whole.
"""

from __future__ import annotations

import sys
from typing import Any, Callable

import torch

#: is given the place of a tensor and the tensor, and returns what is moved instead
OnMove = Callable[[str, torch.Tensor], torch.Tensor]

_TORCH = torch.__path__[0]


class Moves:
    """Sees tensors that are moved to the GPU."""

    def __init__(self, on_move: OnMove, num_passes: Callable[[], int]) -> None:
        """Have ``on_move`` called; ``num_passes`` counts forward and backward passes."""
        self._on_move = on_move
        self._num_passes = num_passes
        self._last_pass = -1
        self._counts: dict[str, int] = {}
        for name in ("to", "cuda"):
            setattr(torch.Tensor, name, self._seen(getattr(torch.Tensor, name), name))
        self._see_new_tensors()

    def _seen(self, move: Any, name: str) -> Any:
        def seen_move(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            if tensor.device.type == "cpu":
                target = kwargs.get("device", args[0] if args else None)
                if name == "cuda" or _is_cuda(target):
                    tensor = self._see(tensor)
            return move(tensor, *args, **kwargs)

        return seen_move

    def _see_new_tensors(self) -> None:
        """Those that are made of numbers: torch itself makes them on the CPU, and moves them."""
        make = torch.tensor

        def seen_make(data: Any, **options: Any) -> torch.Tensor:
            device = options.pop("device", None)
            if not _is_cuda(device):
                return make(data, device=device, **options)
            needs_grad = options.pop("requires_grad", False)
            moved = make(data, **options).to(device)
            return moved.requires_grad_() if needs_grad else moved

        torch.tensor = seen_make

    def _see(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, torch.nn.Parameter) or tensor.requires_grad:
            return tensor
        place = self._place()
        return tensor if place is None else self._on_move(place, tensor)

    def _place(self) -> str | None:
        """Name the line that moves a tensor, and which of its tensors this is; None in torch."""
        frame: Any = sys._getframe(2)
        while frame.f_code.co_filename == __file__:
            frame = frame.f_back
        if frame.f_code.co_filename.startswith(_TORCH):  # a module that is moved, say
            return None
        if self._num_passes() != self._last_pass:
            self._last_pass, self._counts = self._num_passes(), {}
        line = f"{frame.f_code.co_filename}:{frame.f_lineno}"
        self._counts[line] = self._counts.get(line, 0) + 1
        return f"{line}.{self._counts[line]}"


def _is_cuda(device: Any) -> bool:
    if isinstance(device, torch.device):
        return device.type == "cuda"
    if isinstance(device, str):
        return device.startswith("cuda")
    return isinstance(device, int) and not isinstance(device, bool)
