"""Makes traces of a GPU as ``torch.profiler`` writes them: small, and with totals that add up."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from memgate.trace import Trace, read_trace
from memgate.units import GIB, MIB

V100 = {"id": 0, "name": "Tesla V100-SXM2-32GB", "totalGlobalMem": 32 * GIB, "computeMajor": 7}

_THREAD = 7


class GpuTrace:
    """A program on GPUs, written down event by event; each takes a microsecond."""

    def __init__(self, *, before_bytes: int = 0, reserved_bytes: int = 0) -> None:
        #: what was there before the trace, on each device
        self._before_bytes = before_bytes
        self._reserved_bytes = reserved_bytes
        self._allocated: dict[int, int] = {}
        self._reserved: dict[int, int] = {}
        self._sizes: dict[int, int] = {}
        self._now_us = 1000
        self.events: list[dict[str, Any]] = []

    def alloc(self, address: int, size_bytes: int, *, device: int = 0) -> None:
        """Allocate."""
        self._sizes[address] = size_bytes
        self._note(address, size_bytes, device)

    def free(self, address: int, size_bytes: int | None = None, *, device: int = 0) -> None:
        """Free; ``size_bytes`` are needed of memory from before the trace."""
        self._note(address, -(size_bytes or self._sizes[address]), device)

    def _note(self, address: int, size_bytes: int, device: int) -> None:
        allocated = self._allocated.get(device, self._before_bytes) + size_bytes
        self._allocated[device] = allocated
        reserved = max(self._reserved.get(device, self._reserved_bytes), allocated)
        self._reserved[device] = reserved
        self.add(
            cat="cpu_instant_event",
            name="[memory]",
            ph="i",
            args={
                "Addr": address,
                "Bytes": size_bytes,
                "Device Type": 1,
                "Device Id": device,
                "Total Allocated": allocated,
                "Total Reserved": reserved,
            },
        )

    def add(self, **event: Any) -> dict[str, Any]:
        """Add an event of any kind."""
        self._now_us += 1
        self.events.append({"ts": self._now_us, "tid": _THREAD, **event})
        return self.events[-1]

    @contextmanager
    def op(self, name: str, **args: Any) -> Iterator[None]:
        """Run an operator."""
        with self.span(cat="cpu_op", name=name, args={"Input Dims": [[2, 3]], **args}):
            yield

    @contextmanager
    def span(self, **event: Any) -> Iterator[None]:
        """Do something for as long as the block lasts."""
        made = self.add(ph="X", **event)
        yield
        self._now_us += 1
        made["dur"] = self._now_us - made["ts"]

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Run an operator of the forward pass, in a module."""
        module = {"cat": "python_function", "name": "nn.Module: Linear_0"}
        with self.span(**module), self.op("aten::linear", **{"Sequence number": 5}):
            yield

    @contextmanager
    def backward(self) -> Iterator[None]:
        """Run an operator of the backward pass."""
        node = "autograd::engine::evaluate_function: LinearBackward0"
        numbers = {"Sequence number": 5, "Fwd thread id": 1}
        with self.op(node, **numbers), self.op("aten::mm"):
            yield

    @contextmanager
    def step(self) -> Iterator[None]:
        """Run the optimizer."""
        note = {"cat": "user_annotation", "name": "Optimizer.step#AdamW.step"}
        with self.span(**note), self.op("aten::zeros_like"):
            yield

    def iteration(self, *, activations: int, gradients: int) -> None:
        """Train a step whose state is older than the trace."""
        with self.forward():
            self.alloc(0x1000, activations)
        with self.backward():
            self.alloc(0x2000, gradients)
            self.free(0x1000)
        with self.step():
            self.alloc(0x3000, 2 * MIB)
            self.free(0x3000)
        self.free(0x2000)

    def to_bytes(self, **more: Any) -> bytes:
        """Write the file."""
        document = {"schemaVersion": 1, "deviceProperties": [V100], "traceEvents": self.events}
        return json.dumps(document | more).encode()

    def read(self, **more: Any) -> Trace:
        """Write the file, and read it."""
        return read_trace(io.BytesIO(self.to_bytes(**more)))
