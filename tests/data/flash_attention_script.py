"""Calls the stand-in for flash-attn on the phantom and prints what was allocated, as JSON.

Run by the interpreter of a runtime: the first argument is where the stand-in is.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from memgate_worker.hook.memgate_hook.phantom import Phantom

LIBRARIES = Path(os.environ["MEMGATE_PHANTOM_LIBRARIES"])
Phantom(LIBRARIES)
sys.path.append(sys.argv[1])

import flash_attn  # noqa: E402
import torch  # noqa: E402
from flash_attn.bert_padding import pad_input, unpad_input  # noqa: E402
from flash_attn.layers.rotary import RotaryEmbedding, apply_rotary_emb  # noqa: E402

from memgate_worker.hook.memgate_hook.values import follow_values  # noqa: E402


def _now(peak: bool = False) -> int:
    return int(torch.cuda.memory_stats()[f"requested_bytes.all.{'peak' if peak else 'current'}"])


def _make(*shape: int) -> Any:
    return torch.empty(shape, device="cuda", dtype=torch.bfloat16, requires_grad=True)


def _measure(call: Any, *tensors: Any) -> list[int]:
    """Return what a call keeps, its peak, and the peak of its backward pass, beyond what is there.

    What a backward pass returns counts, what it is given does not.
    """
    before = _now()
    torch.cuda.reset_peak_memory_stats()
    out = call(*tensors)
    kept, peak = _now() - before, _now(peak=True) - before
    gradient = torch.empty_like(out)
    before = _now()
    torch.cuda.reset_peak_memory_stats()
    torch.autograd.grad(out, tensors, gradient)
    taken = _now(peak=True) - before
    # The thread of the backward pass keeps its last graph, and with it these tensors.
    torch.zeros((), device="cuda", requires_grad=True).backward()
    return [kept, peak, taken]


def _measure_cache() -> int:
    before = _now()
    torch.cuda.reset_peak_memory_stats()
    cache = [torch.empty(1, 4096, 2, 64, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
    query = torch.empty(1, 1, 16, 64, device="cuda", dtype=torch.bfloat16)
    made = _now()
    flash_attn.flash_attn_with_kvcache(query, *cache)
    assert made > before
    return _now(peak=True) - made


def main() -> None:
    """Measure all cases."""
    follow_values(LIBRARIES)
    batch, length, heads, dim = 4, 300, 8, 64
    lengths = torch.tensor([0, 200, 500, 600, 1200], device="cuda", dtype=torch.int32)
    whole = (batch, length, heads, dim)
    few = (batch, length, 2, dim)
    odd = (batch, length, heads, 36)
    ends = (lengths, lengths, 600, 600)
    found = {
        "dense": _measure(flash_attn.flash_attn_func, *(_make(*whole) for _ in range(3))),
        "grouped": _measure(flash_attn.flash_attn_func, _make(*whole), _make(*few), _make(*few)),
        "padded": _measure(flash_attn.flash_attn_func, *(_make(*odd) for _ in range(3))),
        "deterministic": _measure(
            lambda *all: flash_attn.flash_attn_func(*all, deterministic=True),
            *(_make(*whole) for _ in range(3)),
        ),
        "packed": _measure(
            flash_attn.flash_attn_qkvpacked_func, _make(batch, length, 3, heads, dim)
        ),
        "keys packed": _measure(
            flash_attn.flash_attn_kvpacked_func, _make(*whole), _make(batch, length, 2, heads, dim)
        ),
        "several lengths": _measure(
            lambda *all: flash_attn.flash_attn_varlen_func(*all, *ends),
            *(_make(1200, heads, dim) for _ in range(3)),
        ),
        "lengths packed": _measure(
            lambda qkv: flash_attn.flash_attn_varlen_qkvpacked_func(qkv, lengths, 600),
            _make(1200, 3, heads, dim),
        ),
        "split": _measure(
            flash_attn.flash_attn_func,
            *(_make(1, length, heads, dim) for length in (64, 4096, 4096)),
        ),
        "rotary": _measure(
            lambda heads: apply_rotary_emb(heads, *torch.zeros(2, length, 16, device="cuda")),
            _make(*whole),
        ),
        "cache": _measure_cache(),
    }
    mask = torch.tensor([[1, 1, 0], [1, 0, 0]], device="cuda")
    rows, indices, cumulative, longest, used = unpad_input(_make(2, 3, 8), mask)
    found["unpadded"] = [list(rows.shape), cumulative.tolist(), longest, used.tolist()]
    rotary = RotaryEmbedding(32, device="cuda")
    rotary._update_cos_sin_cache(length, device=rows.device, dtype=rows.dtype)
    found["table"] = [list(rotary._cos_cached.shape), str(rotary._cos_cached.dtype)]
    found["padded again"] = list(pad_input(rows, indices, 2, 3).shape)
    print(json.dumps(found))  # noqa: T201  it is read from here


main()
