"""Trains a small model on the phantom in whatever Python runs this file, and prints what happened.

Run as a program by the tests, with a plain environment's own Python: it needs torch and the
standard library, Python 3.9 or later, and knows nothing of memgate. Its arguments are a JSON text
with `libraries`, `tracker` and `cudnn_dir` (fields of `Standins`) and the name of a model. Prints
one line of JSON.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from typing import Any


def load(standins: dict[str, Any]) -> ctypes.CDLL:
    """Load the stand-ins before torch; return the one with the controls."""
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    libraries = [ctypes.CDLL(path, ctypes.RTLD_GLOBAL) for path in standins["libraries"]]
    core = libraries[0]
    if standins["cudnn_dir"]:
        core.memgate_phantom_open_cudnn.restype = ctypes.c_char_p
        problem = core.memgate_phantom_open_cudnn(standins["cudnn_dir"].encode())
        if problem:
            raise OSError(problem.decode())
    return core


def cnn() -> Any:
    """Return a loss of convolutions, and what it is taken of."""
    import torch
    from torch import nn

    model = nn.Sequential(
        nn.Conv2d(3, 64, 7, stride=2, padding=3, bias=False),
        *(nn.BatchNorm2d(64), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)),
        nn.Conv2d(64, 128, 3, padding=1),
        *(nn.BatchNorm2d(128), nn.ReLU()),
        nn.Conv2d(128, 256, 3, stride=2, groups=2),
        *(nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 1000)),
    ).to("cuda")
    images = torch.randn(16, 3, 160, 160).to("cuda")
    labels = torch.randint(1000, (16,)).to("cuda")
    return model, lambda: nn.functional.cross_entropy(model(images), labels)


def gpt() -> Any:
    """Return the loss of a small language model, and what it is taken of."""
    import torch
    from torch import nn

    class Block(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(256), nn.LayerNorm(256)
            self.inward, self.outward = nn.Linear(256, 768), nn.Linear(256, 256)
            self.wide, self.narrow = nn.Linear(256, 1024), nn.Linear(1024, 256)

        def forward(self, x: Any) -> Any:
            shape = (*x.shape[:2], 8, 32)
            parts = self.inward(self.first(x)).split(256, dim=2)
            q, k, v = (part.view(shape).transpose(1, 2) for part in parts)
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.outward(y.transpose(1, 2).reshape(x.shape))
            return x + self.narrow(nn.functional.gelu(self.wide(self.second(x))))

    # Not by autocast: the order in which it frees its copies of weights is that of their addresses.
    words = nn.Embedding(8192, 256)
    model = nn.Sequential(words, *(Block() for _ in range(3)), nn.LayerNorm(256))
    model.to("cuda", torch.bfloat16)
    tokens = torch.randint(8192, (8, 256)).to("cuda")

    def loss() -> Any:
        logits = (model(tokens) @ words.weight.T)[:, :-1].flatten(0, 1)
        return nn.functional.cross_entropy(logits.float(), tokens[:, 1:].flatten())

    return model, loss


def read_rows(tracker: ctypes.CDLL) -> list[tuple[int, int, int]]:
    """Return action, size and stream of every event; streams by the order of their first use."""
    tracker.memgate_tracker_position.restype = ctypes.c_int64
    count = tracker.memgate_tracker_position()
    numbers = (ctypes.c_int64 * (4 * count))()
    tracker.memgate_tracker_copy_rows(numbers, ctypes.c_int64(count))
    streams: dict[int, int] = {}
    return [
        (numbers[i], numbers[i + 2], streams.setdefault(numbers[i + 3], len(streams)))
        for i in range(0, 4 * count, 4)
    ]


def mapped_libraries() -> list[str]:
    """Return the files that this process has mapped."""
    with open("/proc/self/maps") as maps:
        paths = {line[line.index("/") :].strip() for line in maps if "/" in line}
    return sorted(path for path in paths if ".so" in path)


def main() -> None:
    """Train three steps."""
    standins, name = json.loads(sys.argv[1]), sys.argv[2]
    core = load(standins)
    core.memgate_phantom_unmodelled.restype = ctypes.c_char_p
    import torch

    tracker = ctypes.CDLL(standins["tracker"])
    torch.cuda.init()
    tracker.memgate_tracker_attach()
    torch.backends.cuda.enable_cudnn_sdp(False)
    model, loss = {"cnn": cnn, "gpt": gpt}[name]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(3):
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
    torch.cuda.synchronize()
    stats = torch.cuda.memory_stats()
    answer = {
        "torch": torch.__version__,
        "device": torch.cuda.get_device_name(),
        "rows": read_rows(tracker),
        "peak_allocated_bytes": stats["allocated_bytes.all.peak"],
        "peak_reserved_bytes": stats["reserved_bytes.all.peak"],
        "refused": core.memgate_phantom_unmodelled().decode().split(),
        "mapped": mapped_libraries(),
    }
    sys.stdout.write(json.dumps(answer) + "\n")


if __name__ == "__main__":
    main()
