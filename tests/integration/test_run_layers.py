"""Layers under ``memgate run`` that only NVIDIA's libraries know the memory of."""

from __future__ import annotations

from pathlib import Path

from memgate.timeline import Alloc
from tests.integration.recording import (
    RUNTIME,
    needs_runtime,
    record_script,
)

pytestmark = needs_runtime

RECURRENT = """
import torch
from torch import nn
layers = nn.ModuleList([nn.LSTM(64, 64), nn.GRU(64, 64, 2, bidirectional=True)]).cuda()
packed = nn.utils.rnn.pack_padded_sequence
optimizer = torch.optim.SGD(layers.parameters(), lr=1)
for _ in range(6):
    batch = torch.zeros(20, 8, 64, device="cuda")
    first, _ = layers[0](batch)
    second, _ = layers[1](packed(first, torch.arange(20, 12, -1)))
    second.data.sum().backward()
    optimizer.step()
assert torch.backends.cudnn.enabled
nn.LSTM(4, 4)(torch.zeros(2, 2, 4))  # on the CPU it is as always
"""


def test_recurrent_layers_run_without_cudnn(tmp_path: Path) -> None:
    """An answer in doubt is worth more than none: both keep the gates of every step."""
    path = tmp_path / "train.py"
    path.write_text(RECURRENT)

    run = record_script(RUNTIME, path)

    assert run.num_steps == 6
    (doubt,) = run.traced.doubts
    assert doubt.code == "RECURRENT_LAYERS"
    # the gates of every step, for 8 samples: 4 of an LSTM, with 64 numbers of 4 bytes
    sizes = [event.size_bytes for event in run.traced.timeline.events if isinstance(event, Alloc)]
    assert sizes.count(8 * 4 * 64 * 4) >= 6 * 20
