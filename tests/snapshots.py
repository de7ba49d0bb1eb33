"""Makers of memory snapshots: documents as PyTorch writes them, and pickles as nobody should."""

from __future__ import annotations

import io
import os
import pickle
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from memgate.snapshots.reading import DeviceHistory, read_histories, read_snapshot
from memgate.units import MIB

#: real ones, by job and PyTorch
REAL_SNAPSHOTS = Path(__file__).parent / "data" / "snapshots"

BASE = 1 << 40

FORWARD = [
    {"filename": "site-packages/torch/nn/modules/module.py", "name": "_call_impl", "line": 1}
]
BACKWARD = [{"filename": "??", "name": "torch::autograd::Engine::evaluate_function()", "line": 0}]
OPTIMIZER = [{"filename": "/x/torch/optim/adam.py", "name": "step", "line": 1}]
MODEL = [{"filename": "C:\\x\\torch\\nn\\modules\\linear.py", "name": "__init__", "line": 1}]
EMPTY_CACHE = [{"filename": "/x/torch/cuda/memory.py", "name": "empty_cache", "line": 1}]
SOMEWHERE = [{"filename": "train.py", "name": "main", "line": 1}]


def make_event(action: str, address: int = BASE, size: int = MIB, **more: Any) -> dict[str, Any]:
    """Make an entry of a history."""
    where = "device_free" if action == "oom" else "addr"
    entry = {"action": action, where: address, "size": size, "stream": 0, "time_us": 1}
    return entry | {"frames": SOMEWHERE} | more


def make_free(address: int = BASE, size: int = MIB, **more: Any) -> list[dict[str, Any]]:
    """Make the two entries of a free that nothing waits for."""
    names = ("free_requested", "free_completed")
    return [make_event(name, address, size, **more) for name in names]


def make_block(
    size: int = MIB, *, state: str = "active_allocated", frames: Any = (), **more: Any
) -> dict[str, Any]:
    """Make a block of a segment."""
    return {"size": size, "requested_size": size, "state": state, "frames": list(frames)} | more


def make_segment(
    *blocks: dict[str, Any], address: int = BASE, kind: str = "large", **more: Any
) -> dict[str, Any]:
    """Make a segment of blocks that lie side by side."""
    at = address
    placed = []
    for block in blocks:
        placed.append({"address": at} | block)
        at += block["size"]
    return {
        "device": 0,
        "address": address,
        "total_size": at - address,
        "stream": 0,
        "segment_type": kind,
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "blocks": placed,
    } | more


def make_document(
    segments: Iterable[dict[str, Any]] = (), *traces: list[dict[str, Any]], conf: str = ""
) -> dict[str, Any]:
    """Make a snapshot, with a history for each device."""
    return {
        "segments": list(segments),
        "device_traces": list(traces) or [[]],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": conf},
    }


def read_document(document: Any, **options: Any) -> list[DeviceHistory]:
    """Write a document as PyTorch does, and read it as memgate does."""
    return read_histories(read_snapshot(io.BytesIO(pickle.dumps(document))), **options)


# -- pickles that mean harm ------------------------------------------------------------------------


class _Calls:
    """Is pickled as a call."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self._call = (function, arguments)

    def __reduce__(self) -> Any:
        return self._call


class Plain:
    """Is pickled as an object."""

    def __init__(self) -> None:
        self.value = 1


def _text(value: bytes) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value


def make_malicious(canary: Path) -> dict[str, bytes]:
    """Make pickles that would run something, or take all memory or time; by what they try.

    Those that run something would make the file ``canary``.
    """
    touch = f"touch {canary}"
    found: dict[str, bytes] = {}
    for protocol in range(6):
        for name, call in (
            ("system", _Calls(os.system, touch)),
            ("eval", _Calls(eval, f"open({str(canary)!r}, 'w')")),
            ("nested", {"segments": [], "device_traces": [[{"frames": _Calls(os.mkdir, touch)}]]}),
        ):
            found[f"{name}, protocol {protocol}"] = pickle.dumps(call, protocol=protocol)
        found[f"object, protocol {protocol}"] = pickle.dumps(Plain(), protocol=protocol)
    command = touch.encode()
    found |= {
        "INST": b"(S'" + command + b"'\nios\nsystem\n.",
        "INST after text": b"(V" + command + b"\nios\nsystem\n.",
        "OBJ": b"(cos\nsystem\nV" + command + b"\no.",
        "GLOBAL": b"\x80\x02cos\nsystem\nV" + command + b"\n\x85R.",
        "STACK_GLOBAL": b"\x80\x04" + _text(b"os") + _text(b"system") + b"\x93.",
        "NEWOBJ": b"\x80\x02N)\x81.",
        "NEWOBJ_EX": b"\x80\x04N)}\x92.",
        "BUILD": b"\x80\x02}}b.",
        "EXT1": b"\x80\x02\x82\x01.",
        "EXT2": b"\x80\x02\x83\x01\x00.",
        "EXT4": b"\x80\x02\x84\x01\x00\x00\x00.",
        "PERSID": b"P1\n.",
        "BINPERSID": b"\x80\x02K\x01Q.",
        "EMPTY_SET": b"\x80\x04\x8f.",
        "FROZENSET": b"\x80\x04(\x91.",
        "BYTEARRAY8": b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b".",
        "NEXT_BUFFER": b"\x80\x05\x97.",
        "an unknown opcode": b"\x80\x04\xff.",
        "a text of 8 EiB": b"\x80\x04\x8d" + struct.pack("<Q", 2**63 - 1) + b"x.",
        "bytes of 4 GiB": b"\x80\x04B\xff\xff\xff\xffx.",
        "a number of 2 GiB": b"\x80\x02\x8b\xff\xff\xff\x7f\x01.",
        "a number of 40,000 digits": b"I" + b"9" * 40_000 + b"\n.",
        "lists in lists": b"\x80\x02" + b"]" * 50_000 + b"a" * 49_999 + b".",
        "tuples in tuples": b"\x80\x02N" + b"\x85" * 50_000 + b".",
        "a tuple in tuples as a key": b"\x80\x02}N" + b"\x85" * 50_000 + b"K\x01s.",
        "numbers that collide": pickle.dumps({key * (2**61 - 1): 0 for key in range(1000)}),
        "marks only": b"\x80\x02" + b"(" * 50_000 + b".",
        "a memo at every number": b"\x80\x02N"
        + b"".join(b"r" + struct.pack("<I", 7919 * number) for number in range(5000))
        + b"0.",
        "a history that is shared": _laughs(),
        "a history in itself": b"\x80\x02}(X\x08\x00\x00\x00segments]X\x0d\x00\x00\x00device_traces"
        + b"]q\x01h\x01au.",
    }
    return found


def _laughs() -> bytes:
    """Make a small file that has a thousand histories of twenty thousand events, all the same."""
    event = make_event("alloc")
    history = [event] * 20_000
    return pickle.dumps(make_document([], *[history] * 1000))
